// A thread that has the system provide memory shortly before it is written for the first time.
//
// The first write to a huge page waits until 2 MiB are found and cleared. In a virtual machine that
// took 2 ms, every third page of keys and values: with four streams of SmolLM2 the longest per cent
// of steps took 5.2 ms where the median took 3.2, and 3.4 with the memory there beforehand. All of
// it at once would take what a small load never needs.
//
// The thread works while nobody else does: on a machine whose cores compute, even the lowest
// priority comes to a time slice now and then, and a step that loses a thread for it takes 5 ms
// more.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace heddle {

class FaultAhead {
  public:
    // `base` is mapped, private and anonymous, until after this object. Where the system has no
    // such request (Linux before 5.14) nothing is done ahead.
    FaultAhead(uint8_t* base, int64_t bytes);
    ~FaultAhead();
    FaultAhead(const FaultAhead&) = delete;
    FaultAhead& operator=(const FaultAhead&) = delete;

    // Bytes up to `end` are in use, and something is being computed. Called by one thread.
    void reached(int64_t end);

  private:
    using Clock = std::chrono::steady_clock;

    void work();
    bool idle() const;

    uint8_t* base_;
    int64_t bytes_;
    int64_t wanted_ = 0;   // bytes from base; guarded by mutex_
    int64_t reached_ = 0;  // the caller's own
    std::atomic<Clock::rep> busy_at_{0};
    bool stopping_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
};

}  // namespace heddle
