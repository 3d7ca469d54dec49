#include "thread_pool.h"

#include <sched.h>
#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace heddle {

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// About 200 us of pauses before the thread yields its core. Do not yield early: if another process
// wants the core, a yield costs a complete time slice, and the step continues with one thread
// (measured: steps of 2.5 ms became 10 ms beside one busy process).
constexpr int kSpins = 4'000;
// Workers wait for the next step this long before they sleep. The time between two steps of a busy
// engine (scheduling, delivery) is shorter, so decoding needs no wake-up.
constexpr auto kLinger = std::chrono::microseconds(300);

// Niceness of compute threads, as of the engine thread (thread_priority.py has the reason).
constexpr int kNiceness = 5;

void let_others_go_first() {
#if defined(__linux__)
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
#endif
}

bool stays_on(std::thread& thread, int processor) {
#if defined(__linux__)
    if (processor < 0 || processor >= CPU_SETSIZE) return false;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    return pthread_setaffinity_np(thread.native_handle(), sizeof only, &only) == 0;
#else
    (void)thread, (void)processor;
    return false;
#endif
}

class ForTask final : public Task {
  public:
    ForTask(int items, const std::function<void(int)>& f) : items_(items), f_(f) {}
    int instructions() const override { return 1; }
    int items(int) const override { return items_; }
    void run(int, int item, int) override { f_(item); }

  private:
    int items_;
    const std::function<void(int)>& f_;
};

}  // namespace

ThreadPool::ThreadPool(int threads, const std::vector<int>& processors)
    : claimed_(std::make_unique<Apart<uint64_t>[]>(static_cast<size_t>(threads))) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
    } catch (const std::system_error& error) {
        const std::string started = std::to_string(this->threads());
        stop();
        throw std::runtime_error("the system gives " + started + " of " + std::to_string(threads) +
                                 " threads: " + error.code().message());
    }
    pin(processors);
}

void ThreadPool::pin(const std::vector<int>& processors) {
    for (size_t i = 0; i < workers_.size() && !processors.empty(); ++i) {
        const int processor = processors.at(i + 1);
        if (stays_on(workers_[i], processor)) continue;
        stop();
        throw std::invalid_argument("the system does not let a thread stay on processor " +
                                    std::to_string(processor));
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::begin(Task& task) {
    if (task_ != nullptr) throw std::logic_error("the threads have another task");
    for (int lane = 0; lane < threads(); ++lane) {
        claimed_[lane].value.store(0, std::memory_order_relaxed);
    }
    reached_.value.store(0, std::memory_order_relaxed);
    task_ = &task;
    // The lock orders the epoch with a worker's decision to sleep.
    std::lock_guard<std::mutex> lock(mutex_);
    epoch_.value.fetch_add(1);
    if (sleeping_ > 0) wake_.notify_all();
}

void ThreadPool::finish() {
    work(*task_, 0);
    epoch_.value.fetch_add(1);
    // Sequentially consistent with the worker's entry: the worker either sees the closed epoch and
    // leaves, or is counted here.
    while (inside_.value.load() != 0) pause_briefly();
    task_ = nullptr;
    if (!failed_.load()) return;
    failed_ = false;
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::parallel_for(int items, const std::function<void(int)>& f) {
    ForTask task(items, f);
    run(task);
}

void ThreadPool::work(Task& task, int thread) {
    const int count = task.instructions();
    for (int i = 0; i < count; ++i) {
        if (reached_.value.load(std::memory_order_acquire) > i) continue;
        const int items = task.items(i);
        if (items == 0) continue;
        const int lanes = std::min(items, threads());
        for (int k = 0; k < lanes && reached_.value.load(std::memory_order_relaxed) <= i; ++k) {
            const int done = work_lane(task, i, items, (thread + k) % lanes, thread);
            if (done > 0) complete(i, items, done);
        }
        await(i);
    }
}

// Counts items that this thread has done. Only threads that have done items add to the count, and
// the last one clears it, so a late thread changes nothing.
void ThreadPool::complete(int instruction, int items, int done) {
    if (completed_.value.fetch_add(done, std::memory_order_acq_rel) + done < items) return;
    completed_.value.store(0, std::memory_order_relaxed);
    reached_.value.store(instruction + 1, std::memory_order_release);
}

// Claims and does items of a lane until none is left. Returns how many.
int ThreadPool::work_lane(Task& task, int instruction, int items, int lane, int thread) {
    const int least = items / threads(), more = items % threads();  // the first lanes have one more
    const int first = lane * least + std::min(lane, more), size = least + (lane < more ? 1 : 0);
    const uint64_t none = uint64_t{static_cast<uint32_t>(instruction + 1)} << 32;
    std::atomic<uint64_t>& claimed = claimed_[lane].value;
    int done = 0;
    for (uint64_t seen = claimed.load(std::memory_order_relaxed);;) {
        // An earlier instruction: no item of this one is claimed. A later one: all items are.
        const uint64_t next = seen < none ? 0 : seen - none;
        if (next >= static_cast<uint64_t>(size)) return done;
        if (!claimed.compare_exchange_weak(seen, none + next + 1, std::memory_order_relaxed)) {
            continue;
        }
        run_item(task, instruction, first + static_cast<int>(next), thread);
        ++done;
        seen = claimed.load(std::memory_order_relaxed);
    }
}

// Waits until the instruction is complete.
void ThreadPool::await(int instruction) {
    for (int spins = 0; reached_.value.load(std::memory_order_acquire) <= instruction; ++spins) {
        if (spins < kSpins) {
            pause_briefly();
        } else {
            sched_yield();
        }
    }
}

// Catches exceptions: an exception that leaves a worker ends the process. Later items are completed
// but not run, because other threads wait for their completion.
void ThreadPool::run_item(Task& task, int instruction, int item, int thread) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
        task.run(instruction, item, thread);
    } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        failed_ = true;
    }
}

bool ThreadPool::wait_for_task(uint64_t& seen) {
    const auto until = std::chrono::steady_clock::now() + kLinger;
    const auto open = [&] {
        const uint64_t epoch = epoch_.value.load();
        return epoch != seen && epoch % 2 == 1;
    };
    while (!stopping_) {
        for (int i = 0; i < 64; ++i) {
            if (open()) return true;
            pause_briefly();
        }
        if (std::chrono::steady_clock::now() < until) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleeping_;
        wake_.wait(lock, [&] { return stopping_ || open(); });
        --sleeping_;
    }
    return false;
}

void ThreadPool::worker(int thread) {
    let_others_go_first();
    uint64_t seen = 0;
    while (wait_for_task(seen)) {
        inside_.value.fetch_add(1);
        const uint64_t epoch = epoch_.value.load();
        if (epoch % 2 == 1) {
            seen = epoch;
            work(*task_, thread);
        }
        inside_.value.fetch_sub(1);
    }
}

}  // namespace heddle
