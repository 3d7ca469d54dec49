// Tasks of random shape on threads, also on far more threads than cores: every item is done once,
// and after all items of the instructions before it. And where threads run, and where memory lies.
//
// Prints what is wrong and exits with 1 if anything is.
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mapping.h"
#include "thread_pool.h"

using namespace heddle;

namespace {

constexpr int kTasks = 60, kInstructions = 200;

std::atomic<bool> failed{false};

void expect(bool good, const char* what) {
    if (good) return;
    if (!failed.exchange(true)) std::fprintf(stderr, "%s\n", what);
}

class Counted final : public Task {
  public:
    explicit Counted(std::vector<int> items)
        : items_(std::move(items)), done_(std::make_unique<std::atomic<int>[]>(items_.size())) {
        for (int count : items_) times_.emplace_back(static_cast<size_t>(count));
        plain_.resize(items_.size());
    }
    int instructions() const override { return static_cast<int>(items_.size()); }
    int items(int instruction) const override { return items_[at(instruction)]; }
    void run(int instruction, int item, int) override {
        for (int i = 0; i < instruction; ++i) {
            expect(done_[i].load(std::memory_order_relaxed) == items(i), "an item came too early");
        }
        // Not atomic: a sanitizer for threads sees it if instructions overlap.
        if (item == 0) plain_[at(instruction)] = instruction > 0 ? plain_[at(instruction - 1)] : 1;
        ++times_[at(instruction)][at(item)];
        done_[instruction].fetch_add(1, std::memory_order_relaxed);
        if (instruction == throws_at) throw std::runtime_error("as planned");
    }
    bool each_once() const {
        for (const auto& instruction : times_) {
            for (int times : instruction) {
                if (times != 1) return false;
            }
        }
        return true;
    }
    int throws_at = -1;

  private:
    static size_t at(int index) { return static_cast<size_t>(index); }
    std::vector<int> items_;
    std::unique_ptr<std::atomic<int>[]> done_;
    std::vector<std::vector<int>> times_;
    std::vector<int> plain_;
};

void run_random_tasks(int threads) {
    ThreadPool pool(threads);
    std::mt19937 random(static_cast<unsigned>(threads));
    for (int i = 0; i < kTasks; ++i) {
        std::vector<int> items;
        // Some instructions have no item, some one, some fewer than threads, some many.
        for (int n = 0; n < kInstructions; ++n) {
            const int most = std::vector<int>{0, 1, threads, 7 * threads}[random() % 4];
            items.push_back(static_cast<int>(random() % static_cast<unsigned>(most + 1)));
        }
        Counted task(items);
        pool.run(task);
        expect(task.each_once(), "an item was not done once");
    }
}

void run_failing_task(int threads) {
    ThreadPool pool(threads);
    Counted task(std::vector<int>(kInstructions, 2 * threads));
    task.throws_at = kInstructions / 2;
    bool thrown = false;
    try {
        pool.run(task);
    } catch (const std::runtime_error&) {
        thrown = true;
    }
    expect(thrown, "the exception of an item was lost");
    Counted next(std::vector<int>(kInstructions, 2 * threads));
    pool.run(next);
    expect(next.each_once(), "threads were of no use after an exception");
}

#if defined(__linux__)
void pin_threads() {
    cpu_set_t allowed;
    expect(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "no affinity");
    int last = 0;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &allowed)) last = i;
    }
    ThreadPool pool(3, {last, last, last});
    const auto caller = std::this_thread::get_id();
    pool.parallel_for(3000, [&](int) {
        cpu_set_t own;
        expect(sched_getaffinity(0, sizeof own, &own) == 0, "no affinity of a thread");
        const bool pinned = CPU_COUNT(&own) == 1 && CPU_ISSET(last, &own);
        if (std::this_thread::get_id() == caller) {
            expect(CPU_EQUAL(&own, &allowed), "the caller is pinned");
        } else {
            expect(pinned, "a thread is not pinned");
        }
    });
    bool refused = false;
    try {
        ThreadPool(2, {0, CPU_SETSIZE});
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    expect(refused, "no processor has this number");
}

// The system says of each mapping where its pages go. Where it forbids the call, as containers
// often do, only the reading of lists is tested.
void spread_memory() {
    expect(nodes_in("0-1,3") == 0b1011, "nodes 0, 1 and 3");
    expect(nodes_in("0") == 1 && nodes_in("") == 0, "one node, and none");
    expect(nodes_in("0-1,x") == 0 && nodes_in("no") == 0, "this is no list");
    expect(nodes_in("62-4000000000") == uint64_t{3} << 62, "nodes above 63 do not count");
    Mapping memory(size_t{1} << 22);
    if (syscall(SYS_mbind, memory.base(), memory.bytes(), 0, nullptr, 0, 0) != 0) return;
    memory.spread_over(1);
    std::ifstream maps("/proc/self/numa_maps");
    char start[32];
    std::snprintf(start, sizeof start, "%lx", reinterpret_cast<unsigned long>(memory.base()));
    for (std::string line; std::getline(maps, line);) {
        if (line.rfind(start, 0) != 0) continue;
        expect(line.find("interleave") != std::string::npos, "the memory is not spread");
    }
}
#endif

}  // namespace

int main() {
#if defined(__linux__)
    pin_threads();
    spread_memory();
#endif

    for (int threads : {1, 2, 3, 7, 16, 64}) {
        run_random_tasks(threads);
        run_failing_task(threads);
    }
    return failed ? 1 : 0;
}
