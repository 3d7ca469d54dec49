// Programs on kernels that fail, or abandon the step, at a known place: how a step ends then.
//
// Prints what is wrong and exits with 1 if anything is.
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "program.h"

using namespace heddle;

namespace {

constexpr int kColumns = 64;
constexpr int kRows = 768;  // panels enough for every item to have several, at every level

bool failed = false;

void expect(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "%s\n", what);
    failed = true;
}

// Called before each matmul kernel, which has no state of its own.
std::function<void(const MatmulArgs&)> before_matmul;

void watched_matmul(const MatmulArgs& args) {
    before_matmul(args);
    portable_kernels()->matmul(args);
}

Kernels watched_kernels() {
    Kernels kernels = *portable_kernels();
    kernels.matmul = watched_matmul;
    return kernels;
}

// A program of one matmul of ones, and a step of all its tokens.
class Bench {
  public:
    Bench(int threads, int tokens)
        : pool(threads),
          kernels_(watched_kernels()),
          cache_(std::make_shared<KvCache>(KvType::kF16, 1, 1, 16, 1)),
          program(pool, kernels_, {cache_}, tokens, 1) {
        const int in = program.buffer(kColumns, false);
        out_ = program.buffer(kRows, false);
        program.embed(matrix(tokens, kColumns), in);
        matrix_ = matrix(kRows, kColumns);
        program.matmul(in, {{matrix_, out_}}, false);
        for (int i = 0; i < tokens; ++i) ids_.push_back(i);
        step_.tokens = tokens;
        step_.ids = step_.positions = ids_.data();
    }
    bool run() {
        program.begin(step_);
        return program.finish();
    }
    // Every output is a sum over columns of ones.
    bool right() const {
        return right([](int) { return static_cast<float>(kColumns); });
    }
    // Whether all outputs of each token are `expected`.
    bool right(const std::function<float(int)>& expected) const {
        for (int64_t i = 0; i < int64_t{step_.tokens} * kRows; ++i) {
            if (program.data(out_)[i] != expected(static_cast<int>(i / kRows))) return false;
        }
        return true;
    }
    // It adds (`rank` + `gain`) * kColumns to each output.
    std::shared_ptr<const Adapter> adapter(int rank, float gain = 0.0f) {
        std::vector<float> gains;
        if (gain != 0.0f) gains.assign(kRows, gain);
        LowRank change = {matrix(rank, kColumns), matrix(kRows, rank),
                          std::vector<float>(rank, 1.0f), std::move(gains)};
        return program.adapter({{matrix_, std::move(change)}});
    }
    // Each output becomes `value` * kColumns.
    std::shared_ptr<const Adapter> whole(float value) {
        return program.adapter({{matrix_, {matrix(kRows, kColumns, value), nullptr, {}, {}}}});
    }
    void adapt(std::vector<Adapted> rows) { step_.adapted = std::move(rows); }

  private:
    std::shared_ptr<const Matrix> matrix(int rows, int columns, float value = 1.0f) {
        const std::vector<float> ones(static_cast<size_t>(rows) * columns, value);
        const TensorBytes raw(reinterpret_cast<const uint8_t*>(ones.data()));
        return std::make_shared<Matrix>(arena_, pool, kernels_, Format::kF32, raw, rows, columns,
                                        std::vector<float>());
    }
    std::shared_ptr<const Matrix> matrix_;

  public:
    ThreadPool pool;

  private:
    Kernels kernels_;
    Arena arena_;
    std::shared_ptr<KvCache> cache_;

  public:
    Program program;

  private:
    int out_ = 0;
    std::vector<int32_t> ids_;
    Step step_;
};

// In a long step an item has several panels. The look before the next item does not count here: the
// first kernel call abandons the step, so any other call is one that nothing looked before.
void check_abandoned_between_panels() {
    constexpr int kTokens = 1025;  // the fewest that make a step long; see matmul_instruction.cpp
    Bench bench(1, kTokens);
    int panels = 0, calls = 0;
    before_matmul = [&](const MatmulArgs& args) {
        panels += args.last_panel - args.first_panel;
        ++calls;
        bench.program.abandon();
    };
    expect(!bench.run(), "an abandoned step says that it was finished");
    expect(calls == 1 && panels == 1, "a long matmul does not stop after the panel it is at");
}

// Both threads are in the matmul when the one that is to fail does.
void check_failure(bool in_worker) {
    Bench bench(2, 8);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> inside{0}, calls{0};
    std::atomic<bool> thrown{false};
    before_matmul = [&](const MatmulArgs&) {
        ++calls;
        ++inside;
        while (inside < 2) std::this_thread::yield();
        if ((std::this_thread::get_id() != caller) == in_worker) {
            thrown = true;
            throw std::bad_alloc();
        }
        while (!thrown) std::this_thread::yield();
    };
    bool caught = false;
    try {
        bench.run();
    } catch (const std::bad_alloc&) {
        caught = true;
    }
    expect(caught, "an exception of a compute thread does not reach the caller");

    before_matmul = [](const MatmulArgs&) {};
    expect(bench.run(), "after an exception the next step is taken to be abandoned");
    expect(bench.right(), "after an exception the next step computes something else");
    std::atomic<int> items{0};
    bench.pool.parallel_for(100, [&](int) { ++items; });
    expect(items == 100, "after an exception the pool leaves items out");
}

// Rows of several adapters, side by side and one upon another, and then a step without any.
void check_adapters(int threads) {
    constexpr int kTokens = 100;
    Bench bench(threads, kTokens);
    before_matmul = [](const MatmulArgs&) {};
    const auto one = bench.adapter(3), other = bench.adapter(17, 4.0f), whole = bench.whole(7.0f);
    bench.adapt({{5, 60, one, 1.0f},
                 {65, 1, one, 1.0f},
                 {50, 40, other, 0.5f},
                 {99, 1, one, 2},
                 {95, 3, whole, 1}});
    expect(bench.run(), "a step with adapters is taken to be abandoned");
    const auto expected = [](int token) {
        float sum = kColumns;
        if (token >= 5 && token < 66) sum += 3 * kColumns;
        if (token >= 50 && token < 90) sum += 0.5f * (17 + 4) * kColumns;
        if (token >= 95 && token < 98) return 7.0f * kColumns;
        if (token == 99) sum += 2 * 3 * kColumns;
        return sum;
    };
    expect(bench.right(expected), "adapters change other rows, or by something else");
    bench.adapt({});
    expect(bench.run() && bench.right(), "adapters change a step after theirs");
    for (const Adapted& wrong : {Adapted{90, 11, one, 1}, Adapted{-1, 2, one, 1},
                                 Adapted{3, 0, one, 1}, Adapted{0, 1, Bench(1, 1).adapter(1), 1}}) {
        bench.adapt({wrong});
        bool refused = false;
        try {
            bench.run();
        } catch (const std::invalid_argument&) {
            refused = true;
        }
        expect(refused, "rows or a program that are not an adapter's are not refused");
    }
}

}  // namespace

int main() {
    check_adapters(1);
    check_adapters(3);
    check_abandoned_between_panels();
    check_failure(true);
    check_failure(false);
    return failed ? 1 : 0;
}
