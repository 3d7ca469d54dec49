#include "fault_ahead.h"

#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heddle {

namespace {

// Bytes that are ready beyond those in use; bytes of one request, a huge page.
constexpr int64_t kAhead = int64_t{128} << 20, kPiece = int64_t{2} << 20;
// This long after the last step began, the thread assumes that no step computes.
constexpr auto kIdleAfter = std::chrono::milliseconds(50);

// Compute threads get the cores first.
void take_lowest_priority() {
#if defined(__linux__)
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
#endif
}

bool provide(uint8_t* from, int64_t bytes) {
#if defined(__linux__)
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
    return madvise(from, static_cast<size_t>(bytes), kPopulateWrite) == 0;
#else
    (void)from, (void)bytes;
    return false;
#endif
}

}  // namespace

FaultAhead::FaultAhead(uint8_t* base, int64_t bytes) : base_(base), bytes_(bytes) {
    wanted_ = std::min(kAhead, bytes_);
    thread_ = std::thread([this] { work(); });
}

FaultAhead::~FaultAhead() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void FaultAhead::reached(int64_t end) {
    busy_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    if (end <= reached_) return;
    reached_ = end;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        wanted_ = std::min(end + kAhead, bytes_);
    }
    wake_.notify_one();
}

bool FaultAhead::idle() const {
    const Clock::duration busy_at(busy_at_.load(std::memory_order_relaxed));
    return Clock::now().time_since_epoch() - busy_at > kIdleAfter;
}

void FaultAhead::work() {
    take_lowest_priority();
    int64_t done = 0;
    while (true) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return stopping_ || done < wanted_; });
            while (!stopping_ && !idle()) wake_.wait_for(lock, kIdleAfter);
            if (stopping_) return;
        }
        const int64_t piece = std::min(kPiece, bytes_ - done);
        if (!provide(base_ + done, piece)) return;
        done += piece;
    }
}

}  // namespace heddle
