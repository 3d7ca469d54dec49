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

// Items per thread that a matmul is cut into.
constexpr int kMatmulItems = 6;

class Matmul final : public Instruction {
  public:
    Matmul(int in, std::vector<MatmulPart> parts, bool accumulate)
        : Instruction("matmul"), in_(in), parts_(std::move(parts)), accumulate_(accumulate) {
        for (const MatmulPart& part : parts_) panels_ += part.matrix->panels();
    }
    int items(const Program& p) const override {
        return rows(p, in_) == 0 ? 0 : std::min(panels_, threads(p) * kMatmulItems);
    }
    // The panels of all parts form one line, cut into equal pieces.
    void run(Program& p, int item, int thread) override {
        const int64_t count = items(p);
        const int first = static_cast<int>(panels_ * int64_t{item} / count);
        const int last = static_cast<int>(panels_ * (int64_t{item} + 1) / count);
        int base = 0;
        for (const MatmulPart& part : parts_) {
            const int panels = part.matrix->panels();
            const int from = std::max(first - base, 0), to = std::min(last - base, panels);
            if (from < to) run_part(p, part, from, to, thread);
            base += panels;
        }
    }

  private:
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
};

}  // namespace

InstructionPointer make_pack(int in) { return std::make_unique<Pack>(in); }

InstructionPointer make_matmul(int in, std::vector<MatmulPart> parts, bool accumulate) {
    return std::make_unique<Matmul>(in, std::move(parts), accumulate);
}

}  // namespace heddle
