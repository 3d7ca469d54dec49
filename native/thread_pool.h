// Threads that compute one step together, instruction by instruction.
//
// An instruction is split into items, and the items into one lane per thread. A thread claims the
// items of its own lane, then items left in other lanes. It may continue with the next instruction
// once all items of this one are completed. A thread that the system does not schedule delays
// others only if it has claimed an item. The caller of `finish` computes too, and does all items if
// no worker wakes in time. Items of a lane are side by side in memory, so a thread reads weights in
// long runs: with one counter for all threads, a token of a 1 GB model took 8% longer.
//
// What threads write often has cache lines of its own: each lane, the count of completed items, and
// the number of the instruction that all others wait for. A thread adds to the count once for
// each lane that it has taken items from, and one thread writes the number.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace heddle {

// A sequence of instructions, each a number of independent items.
class Task {
  public:
    virtual ~Task() = default;
    virtual int instructions() const = 0;
    virtual int items(int instruction) const = 0;
    virtual void run(int instruction, int item, int thread) = 0;
};

class ThreadPool {
  public:
    // `threads` counts the caller of run; at least 1. With `processors`, one for each thread, each
    // thread but the caller stays on its own: the caller also does other work. Throws
    // std::runtime_error if the system refuses a thread, std::invalid_argument if a processor.
    explicit ThreadPool(int threads, const std::vector<int>& processors = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Runs the task to its end. One caller at a time.
    void run(Task& task) {
        begin(task);
        finish();
    }
    // The two halves of `run`. The workers compute after `begin`. The caller computes with them in
    // `finish`, which returns when the task has ended. `begin` throws std::logic_error if a task is
    // open. After the first exception of an item no further item runs, and `finish` rethrows that
    // exception when all threads have left the task. The pool can be used again.
    void begin(Task& task);
    void finish();

    // Runs f(item) for item in [0, items) over the threads, with the same rule for exceptions.
    void parallel_for(int items, const std::function<void(int)>& f);

  private:
    // A value in cache lines of its own. Processors fetch lines in pairs.
    template <class T>
    struct alignas(128) Apart {
        std::atomic<T> value{0};
    };

    void pin(const std::vector<int>& processors);
    void stop();
    void worker(int thread);
    void work(Task& task, int thread);
    void complete(int instruction, int items, int done);
    int work_lane(Task& task, int instruction, int items, int lane, int thread);
    void run_item(Task& task, int instruction, int item, int thread) noexcept;
    void await(int instruction);
    bool wait_for_task(uint64_t& seen);

    std::vector<std::thread> workers_;
    // For each lane: the instruction from which an item was claimed last, counted from 1, in the
    // upper half; the number of items claimed from it in the lower half.
    std::unique_ptr<Apart<uint64_t>[]> claimed_;
    Apart<int> completed_;   // items of the instruction that the threads work at
    Apart<int> reached_;     // all instructions before this one are complete
    Apart<uint64_t> epoch_;  // odd while a task is open
    Apart<int> inside_;      // workers that may touch task_

    Task* task_ = nullptr;  // guarded by epoch_ and inside_
    std::atomic<bool> stopping_{false};
    std::atomic<bool> failed_{false};  // an item of the open task threw
    std::exception_ptr failure_;       // the first exception; guarded by mutex_
    std::mutex mutex_;
    std::condition_variable wake_;
    int sleeping_ = 0;  // guarded by mutex_
};

}  // namespace heddle
