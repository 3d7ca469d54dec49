#include <algorithm>
#include <utility>

#include "instruction.h"
#include "instructions.h"
#include "tiles.h"

namespace heddle {

namespace {

// Whether the matmuls of a buffer read its packed copy in this pass.
bool packs(const Kernels& kernels, int rows) {
    return kernels.packs_from > 0 && rows >= kernels.packs_from;
}

class Pack final : public Instruction {
  public:
    explicit Pack(int in) : Instruction("pack"), in_(in) {}
    bool in_short_steps() const override { return false; }
    int items(const Program& p) const override {
        const int count = rows(p, in_);
        return packs(kernels(p), count) ? tiles_of(count, kernels(p).tile_tokens) : 0;
    }
    void run(Program& p, int item, int) override {
        auto& b = buffer(p, in_);
        kernels(p).pack(b.quantised(), b.width, rows(p, in_), item, b.packed.data());
    }

  private:
    int in_;
};

class Matmul final : public Instruction {
  public:
    Matmul(int in, std::vector<MatmulPart> parts, bool accumulate)
        : Instruction("matmul"), in_(in), parts_(std::move(parts)), accumulate_(accumulate) {
        for (const MatmulPart& part : parts_) panels_ += part.matrix->panels();
    }
    int items(const Program& p) const override {
        const int most = by_columns(p) ? columns(p) / kBlock : panels_;
        return rows(p, in_) == 0 ? 0 : std::min(most, threads(p) * kMatmulItems);
    }
    void run(Program& p, int item, int thread) override {
        by_columns(p) ? run_pair(p, item, thread) : run_line(p, item, thread);
    }
    // If the parts compute all columns of `gate` and `up` and nothing else: an item computes the
    // same whole blocks of both, in short steps. `out` must not be the input, which other items
    // still read: the gated columns are written before all items are complete.
    bool pair(const Program& p, int gate, int up, int out) {
        if (out == in_ || accumulate_ || parts_.size() != 2) return false;
        if (columns(p) % kBlock != 0) return false;
        const int a = parts_[0].out, b = parts_[1].out;
        paired_ = gate != up && ((a == gate && b == up) || (a == up && b == gate));
        return paired_;
    }
    // Not in steps with adapters, which change the columns after the matmul.
    bool by_columns(const Program& p) const {
        return paired_ && rows(p, in_) <= kGateColumnsRows && !adapted(p);
    }
    Cut columns_of(const Program& p, int item) const {
        return cut(columns(p) / kBlock, item, items(p)).times(kBlock);
    }

  private:
    int columns(const Program& p) const { return width(p, parts_[0].out); }
    void run_pair(Program& p, int item, int thread) {
        const auto [first, last] = columns_of(p, item);
        const int rows = kernels(p).panel_rows;
        for (const MatmulPart& part : parts_) run_part(p, part, first / rows, last / rows, thread);
    }
    // The panels of all parts form one line, cut into equal pieces.
    void run_line(Program& p, int item, int thread) {
        const auto [first, last] = cut(panels_, item, items(p));
        int base = 0;
        for (const MatmulPart& part : parts_) {
            const int panels = part.matrix->panels();
            const int from = std::max(first - base, 0), to = std::min(last - base, panels);
            if (from < to) run_part(p, part, from, to, thread);
            base += panels;
        }
    }

    void run_part(Program& p, const MatmulPart& part, int from, int to, int thread) {
        MatmulArgs args = {};
        args.w = &part.matrix->packed();
        args.xq = buffer(p, in_).quantised();
        if (args.xq.q != nullptr) {
            args.xq.q += part.in_column;
            args.xq.scales += part.in_column / kBlock;
        }
        if (is_quantised(args.w->format) && packs(kernels(p), rows(p, in_))) {
            args.packed = {buffer(p, in_).packed.data(), width(p, in_) / kBlock,
                           part.in_column / kBlock};
        }
        args.x = row(p, in_, 0) + part.in_column;
        args.x_stride = width(p, in_);
        args.out = row(p, part.out, 0) + part.out_column;
        args.out_stride = width(p, part.out);
        args.accumulate = accumulate_;
        args.tokens = rows(p, in_);
        multiply(p, args, from, to, thread);
    }
    int in_;
    std::vector<MatmulPart> parts_;
    bool accumulate_;
    int panels_ = 0;
    bool paired_ = false;
};

// Gates the columns of an item of the matmul before, of all rows, while they are in the cache. With
// one row the threads share this work, which would be one thread's otherwise.
class GateColumns final : public Instruction {
  public:
    GateColumns(const Matmul& matmul, Activation activation, int gate, int up, int out,
                bool quantise)
        : Instruction("gated"),
          matmul_(matmul),
          activation_(activation),
          gate_(gate),
          up_(up),
          out_(out),
          quantise_(quantise) {}
    bool follows(const Program&, const Instruction&) const override { return true; }
    int items(const Program& p) const override { return matmul_.items(p); }
    void run(Program& p, int item, int) override {
        if (!matmul_.by_columns(p)) return;
        const auto [first, last] = matmul_.columns_of(p, item);
        const auto kernel = kernels(p).gated[static_cast<int>(activation_)];
        for (int i = 0; i < rows(p, out_); ++i) {
            kernel(row(p, gate_, i) + first, row(p, up_, i) + first, last - first,
                   row(p, out_, i) + first);
            if (quantise_) quantise_columns(p, out_, i, first, last - first);
        }
    }

  private:
    const Matmul& matmul_;
    Activation activation_;
    int gate_, up_, out_;
    bool quantise_;
};

}  // namespace

InstructionPointer make_pack(int in) { return std::make_unique<Pack>(in); }

InstructionPointer make_matmul(int in, std::vector<MatmulPart> parts, bool accumulate) {
    return std::make_unique<Matmul>(in, std::move(parts), accumulate);
}

InstructionPointer make_gate_columns(const Program& p, Instruction* before, Activation activation,
                                     int gate, int up, int out, bool quantise) {
    auto* matmul = dynamic_cast<Matmul*>(before);
    if (matmul == nullptr || !matmul->pair(p, gate, up, out)) return nullptr;
    return std::make_unique<GateColumns>(*matmul, activation, gate, up, out, quantise);
}

}  // namespace heddle
