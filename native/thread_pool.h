// Threads that carry one step together, instruction by instruction, without barriers.
//
// An instruction is split into items. Threads claim items from a counter and may go on to the next
// instruction once all items of this one are completed; a thread that was not scheduled holds
// nobody up unless it owns an item. The caller of `run` works too, and does everything alone if
// no worker wakes in time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace heddle {

// A sequence of instructions, each a number of independent items.
class Job {
  public:
    virtual ~Job() = default;
    virtual int instructions() const = 0;
    virtual int items(int instruction) const = 0;
    virtual void run(int instruction, int item, int thread) = 0;
};

class ThreadPool {
  public:
    // `threads` counts the caller of run; at least 1.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Runs the job to its end. One caller at a time, who first does `meanwhile` while the workers
    // begin; it must not throw.
    void run(Job& job, const std::function<void()>& meanwhile = [] {});

    // Runs f(item) for item in [0, items) over the threads.
    void parallel_for(int items, const std::function<void(int)>& f);

  private:
    struct alignas(64) Progress {
        std::atomic<int> claimed{0};
        std::atomic<int> completed{0};
    };

    void worker(int thread);
    void work(Job& job, int thread);
    bool wait_for_job(uint64_t& seen);

    std::vector<std::thread> workers_;
    std::unique_ptr<Progress[]> progress_;
    int capacity_ = 0;

    Job* job_ = nullptr;              // guarded by epoch_ and inside_
    std::atomic<uint64_t> epoch_{0};  // odd while a job is open
    std::atomic<int> inside_{0};      // workers that may touch job_
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    int sleeping_ = 0;  // guarded by mutex_
};

}  // namespace heddle
