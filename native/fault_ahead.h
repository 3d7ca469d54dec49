// A thread that makes the system provide memory shortly before its first write.
//
// The first write to a huge page waits until 2 MiB are found and cleared. In a virtual machine that
// took 2 ms, for every third page of keys and values. With four streams of SmolLM2 the median step
// took 3.2 ms and the longest per cent of steps 5.2 ms, or 3.4 ms with the memory provided ahead.
// Providing all memory at once would take memory that a small load never needs.
//
// The thread works only while no step computes. On a busy machine even the lowest priority gets a
// time slice now and then, and a step that loses a thread to it takes 5 ms more.
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
    // `base` must be private and anonymous, and stay mapped longer than this object lives. If the
    // system has no such request (Linux before 5.14), the thread provides nothing.
    FaultAhead(uint8_t* base, int64_t bytes);
    ~FaultAhead();
    FaultAhead(const FaultAhead&) = delete;
    FaultAhead& operator=(const FaultAhead&) = delete;

    // Reports that bytes up to `end` are in use, and that a step computes. Only one thread calls
    // this.
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
