#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "storage.h"

namespace heddle {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // bytes that a thread reads at a time
constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 4096;  // bytes, as kernels prefetch
constexpr int kPasses = 5;
constexpr int64_t kRounds = 20'000;  // some 50 us
constexpr int kItems = 64;           // of kRounds, per thread
constexpr int kBarriers = 1'000;
constexpr int kBarrierItems = 6;         // per thread, between two barriers
constexpr int64_t kBarrierRounds = 100;  // of an item, some 0.3 us
constexpr double kBarrierSeconds = 0.05;

// The shortest time of `work` in passes that take `seconds` in total, at least kPasses passes.
double best_seconds(double seconds, const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    double best = 1e9, total = 0.0;
    for (int pass = 0; pass < kPasses || total < seconds; ++pass) {
        const auto begin = Clock::now();
        work();
        const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
        best = std::min(best, taken);
        total += taken;
    }
    return best;
}

// One word of each line is enough, since the machine loads whole lines.
uint64_t read_lines(const uint8_t* from, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t at = 0; at < bytes; at += kLine) {
        __builtin_prefetch(from + at + kAhead);
        uint64_t word;
        std::memcpy(&word, from + at, sizeof word);
        sum += word;
    }
    return sum;
}

// Instructions of equal items.
class EqualItems final : public Task {
  public:
    EqualItems(const Kernels& kernels, int instructions, int items)
        : kernels_(kernels), instructions_(instructions), items_(items) {}
    int instructions() const override { return instructions_; }
    int items(int) const override { return items_; }
    void run(int, int, int) override { kernels_.multiply_adds(kBarrierRounds); }

  private:
    const Kernels& kernels_;
    int instructions_, items_;
};

}  // namespace

double read_rate(ThreadPool& pool, int64_t bytes, double seconds) {
    Arena arena;
    const int pieces = static_cast<int>(std::max<int64_t>(1, bytes / kPiece));
    uint8_t* buffer = arena.allocate(pieces * kPiece);
    pool.parallel_for(pieces, [&](int i) { std::memset(buffer + i * kPiece, 1, kPiece); });
    std::atomic<uint64_t> sum{0};  // keeps the compiler from removing the reads
    const double best = best_seconds(seconds, [&] {
        pool.parallel_for(pieces, [&](int i) { sum += read_lines(buffer + i * kPiece, kPiece); });
    });
    return static_cast<double>(pieces * kPiece) / best;
}

double multiply_rate(ThreadPool& pool, const Kernels& kernels, double seconds) {
    const int items = pool.threads() * kItems;
    std::atomic<int64_t> done{0};
    const double best = best_seconds(seconds, [&] {
        done = 0;
        pool.parallel_for(items, [&](int) { done += kernels.multiply_adds(kRounds); });
    });
    return static_cast<double>(done) / best;
}

double barrier_seconds(ThreadPool& pool, const Kernels& kernels) {
    const int items = pool.threads() * kBarrierItems;
    EqualItems apart(kernels, kBarriers, items), together(kernels, 1, kBarriers * items);
    const double with = best_seconds(kBarrierSeconds, [&] { pool.run(apart); });
    const double without = best_seconds(kBarrierSeconds, [&] { pool.run(together); });
    return std::max(0.0, (with - without) / kBarriers);
}

}  // namespace heddle
