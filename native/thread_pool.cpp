#include "thread_pool.h"

#include <sched.h>
#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

// Niceness of compute threads, as of the engine thread (engine/thread.py has the reason).
constexpr int kNiceness = 5;

void let_others_go_first() {
#if defined(__linux__)
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
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

ThreadPool::ThreadPool(int threads) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
    } catch (const std::system_error& error) {
        const std::string started = std::to_string(this->threads());
        stop();
        throw std::runtime_error("the system gives " + started + " of " + std::to_string(threads) +
                                 " threads: " + error.code().message());
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
    const int count = task.instructions();
    if (count > capacity_) {
        claimed_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count * threads()));
        completed_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count));
        capacity_ = count;
    }
    for (int i = 0; i < count; ++i) completed_[i].store(0, std::memory_order_relaxed);
    for (int i = 0; i < count * threads(); ++i) claimed_[i].store(0, std::memory_order_relaxed);
    task_ = &task;
    // The lock orders the epoch with a worker's decision to sleep.
    std::lock_guard<std::mutex> lock(mutex_);
    epoch_.fetch_add(1);
    if (sleeping_ > 0) wake_.notify_all();
}

void ThreadPool::finish() {
    work(*task_, 0);
    epoch_.fetch_add(1);
    // Sequentially consistent with the worker's entry: the worker either sees the closed epoch and
    // leaves, or is counted here.
    while (inside_.load() != 0) pause_briefly();
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
        const int items = task.items(i);
        const std::atomic<int>& completed = completed_[i];
        if (completed.load(std::memory_order_acquire) == items) continue;
        for (int k = 0; k < threads(); ++k) {
            work_lane(task, i, items, (thread + k) % threads(), thread);
        }
        for (int spins = 0; completed.load(std::memory_order_acquire) != items; ++spins) {
            if (spins < kSpins) {
                pause_briefly();
            } else {
                sched_yield();
            }
        }
    }
}

void ThreadPool::work_lane(Task& task, int instruction, int items, int lane, int thread) {
    const int first = static_cast<int>(int64_t{items} * lane / threads());
    const int last = static_cast<int>(int64_t{items} * (lane + 1) / threads());
    std::atomic<int>& claimed = claimed_[instruction * threads() + lane];
    while (claimed.load(std::memory_order_relaxed) < last - first) {
        const int item = first + claimed.fetch_add(1, std::memory_order_relaxed);
        if (item >= last) return;
        run_item(task, instruction, item, thread);
        completed_[instruction].fetch_add(1, std::memory_order_release);
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
        const uint64_t epoch = epoch_.load();
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
        inside_.fetch_add(1);
        const uint64_t epoch = epoch_.load();
        if (epoch % 2 == 1) {
            seen = epoch;
            work(*task_, thread);
        }
        inside_.fetch_sub(1);
    }
}

}  // namespace heddle
