// The base of all instructions: items that threads take, and access to a program's state.
#pragma once

#include <algorithm>

#include "program.h"

namespace heddle {

// Items per thread that a matmul is cut into.
constexpr int kMatmulItems = 6;
// The item's part of `total`, cut into equal pieces.
inline Cut cut(int64_t total, int64_t item, int64_t items) {
    return {static_cast<int>(total * item / items), static_cast<int>(total * (item + 1) / items)};
}

class Instruction {
  public:
    explicit Instruction(const char* kind) : kind(kind) {}
    virtual ~Instruction() = default;
    virtual int items(const Program& program) const = 0;
    virtual void run(Program& program, int item, int thread) = 0;
    // Whether item i needs only item i of `before`, the instruction before this one. If so, both
    // have equally many items in every step.
    virtual bool follows(const Program&, const Instruction&) const { return false; }
    // Whether it has items in a step of one token, which is sampled.
    virtual bool in_short_steps() const { return true; }
    const char* const kind;

  protected:
    static const Step& step(const Program& p) { return *p.step_; }
    static Step& step(Program& p) { return *p.step_; }
    static const Kernels& kernels(const Program& p) { return p.kernels_; }
    static bool abandoned(const Program& p) { return p.abandoned(); }
    static KvCache& cache(Program& p, int index) { return *p.caches_[index]; }
    static FixedStates& states(Program& p) { return *p.states_; }
    static int threads(const Program& p) { return p.pool_.threads(); }
    static const RopeTable& rope(const Program& p, int table) { return p.ropes_[table]; }
    static const PositionBias& bias(const Program& p, int table) { return p.biases_[table]; }
    static float* scratch(Program& p, int thread) { return p.scratch_[thread].data(); }
    static Program::Buffer& buffer(Program& p, int index) { return p.buffers_[index]; }
    static int width(const Program& p, int index) { return p.buffers_[index].width; }
    static bool per_row(const Program& p, int index) { return p.buffers_[index].per_row; }
    static float* row(Program& p, int index, int64_t i) {
        return p.buffers_[index].values.data() + i * p.buffers_[index].width;
    }
    // Rows of `buffer` that this pass uses.
    static int rows(const Program& p, int index) {
        return p.buffers_[index].per_row ? p.row_count_ : p.step_->tokens;
    }
    // The first row of this pass among all that are wanted, and the token rows they are.
    static int first_row(const Program& p) { return p.first_row_; }
    static int token_row(const Program& p, int i) { return p.wanted_[p.first_row_ + i]; }
    static Candidates& candidates(Program& p, int thread) { return p.candidates_[thread]; }
    static ExpertRows& expert_rows(Program& p) { return p.expert_rows_; }
    // Whether adapters change rows of the step.
    static bool adapted(const Program& p) { return !p.step_->adapted.empty(); }
    static AdapterPlan& adapters(Program& p) { return p.adapters_; }
    static const AdapterPlan& adapters(const Program& p) { return p.adapters_; }
    static const StorePlan& stores(const Program& p) { return p.stores_; }
    static const AttentionPlan& attention(const Program& p, int plan) { return p.plans_[plan]; }
    static float* parts(Program& p) { return p.parts_.data(); }
    // Multiplies the panels [first, last). In a long step it checks after a few panels whether the
    // step is abandoned: 8,192 tokens on one thread take half a second, and an abandoned step
    // should end soon.
    static void multiply(Program& p, MatmulArgs args, int first, int last, int thread) {
        constexpr int kLongStep = 1024;  // tokens
        const int few = args.packed.tiles == nullptr ? 1 : kSlicePanels;
        const int at_once = args.tokens > kLongStep ? few : last - first;
        args.scratch = reinterpret_cast<uint8_t*>(scratch(p, thread));
        for (int panel = first; panel < last && !abandoned(p); panel += at_once) {
            args.first_panel = panel;
            args.last_panel = std::min(panel + at_once, last);
            kernels(p).matmul(args);
        }
    }
    // Quantises columns [column, column + count) of a row, whole blocks.
    static void quantise_columns(Program& p, int index, int64_t i, int column, int count) {
        Program::Buffer& b = p.buffers_[index];
        const int64_t at = i * b.stride() + column;
        p.kernels_.quantise(b.values.data() + i * b.width + column, count, b.q.data() + at,
                            b.scales.data() + at / kBlock);
    }
    static void quantise_row(Program& p, int index, int64_t i) {
        quantise_columns(p, index, i, 0, p.buffers_[index].width);
    }
};

}  // namespace heddle
