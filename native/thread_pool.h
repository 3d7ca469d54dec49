// Threads that compute one step together, instruction by instruction, without barriers.
//
// An instruction is split into items, and the items into one lane per thread. A thread claims the
// items of its own lane, then items left in other lanes. It may continue with the next instruction
// once all items of this one are completed. A thread that the system does not schedule delays
// others only if it has claimed an item. The caller of `finish` computes too, and does all items if
// no worker wakes in time. Items of a lane are side by side in memory, so a thread reads weights in
// long runs: with one counter for all threads, a token of a 1 GB model took 8% longer.
#pragma once

#include <atomic>
#include <condition_variable>
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
    // `threads` counts the caller of run; at least 1. Throws if the system refuses a thread.
    explicit ThreadPool(int threads);
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
    void stop();
    void worker(int thread);
    void work(Task& task, int thread);
    void work_lane(Task& task, int instruction, int items, int lane, int thread);
    void run_item(Task& task, int instruction, int item, int thread) noexcept;
    bool wait_for_task(uint64_t& seen);

    std::vector<std::thread> workers_;
    std::unique_ptr<std::atomic<int>[]> claimed_;    // per instruction and lane
    std::unique_ptr<std::atomic<int>[]> completed_;  // per instruction
    int capacity_ = 0;                               // instructions they hold

    Task* task_ = nullptr;            // guarded by epoch_ and inside_
    std::atomic<uint64_t> epoch_{0};  // odd while a task is open
    std::atomic<int> inside_{0};      // workers that may touch task_
    std::atomic<bool> stopping_{false};
    std::atomic<bool> failed_{false};  // an item of the open task threw
    std::exception_ptr failure_;       // the first exception; guarded by mutex_
    std::mutex mutex_;
    std::condition_variable wake_;
    int sleeping_ = 0;  // guarded by mutex_
};

}  // namespace heddle
