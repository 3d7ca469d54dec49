// What adapters add to a matmul: first all products a x, then b times these, which joins the
// output.
#include <utility>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

using Parts = std::vector<AdaptedPart>;

class AdapterInstruction : public Instruction {
  public:
    AdapterInstruction(int in, Parts parts)
        : Instruction("adapters"), in_(in), parts_(std::move(parts)) {}
    bool in_short_steps() const override { return false; }  // in those without adapters

  protected:
    const std::vector<AdaptedRows>& pieces(const Program& p) const {
        return adapters(p).pieces(per_row(p, in_));
    }
    bool changes(const Program& p) const {
        for (const AdaptedRows& piece : pieces(p)) {
            for (const AdaptedPart& part : parts_) {
                if (piece.adapter->at(part.site) != nullptr) return true;
            }
        }
        return false;
    }
    int in_;
    Parts parts_;
};

// An item has the rows of a piece for one part.
class Reduce final : public AdapterInstruction {
  public:
    using AdapterInstruction::AdapterInstruction;
    int items(const Program& p) const override {
        return changes(p) ? static_cast<int>(pieces(p).size() * parts_.size()) : 0;
    }
    void run(Program& p, int item, int thread) override {
        const int count = static_cast<int>(parts_.size()), part = item % count;
        const AdaptedRows& piece = pieces(p)[static_cast<size_t>(item / count)];
        const LowRank* change = piece.adapter->at(parts_[static_cast<size_t>(part)].site);
        if (change == nullptr) return;
        MatmulArgs args = {};
        args.w = &change->a->packed();
        args.x = row(p, in_, piece.row);
        args.x_stride = width(p, in_);
        args.out = adapters(p).low(piece, part);
        args.out_stride = args.w->rows;
        args.tokens = piece.tokens;
        multiply(p, args, 0, change->a->panels(), thread);
        const int rank = args.w->rows;
        for (int i = 0; i < piece.tokens * rank; ++i) {
            args.out[i] *= piece.factor * change->scales[static_cast<size_t>(i % rank)];
        }
    }
};

// An item has some panels of all parts, and adds them for all pieces.
class Expand final : public AdapterInstruction {
  public:
    Expand(int in, Parts parts) : AdapterInstruction(in, std::move(parts)) {
        for (const AdaptedPart& part : parts_) panels_ += part.panels;
    }
    int items(const Program& p) const override {
        return changes(p) ? std::min(panels_, threads(p) * kMatmulItems) : 0;
    }
    void run(Program& p, int item, int thread) override {
        const auto [first, last] = cut(panels_, item, items(p));
        int base = 0;
        for (size_t part = 0; part < parts_.size(); ++part) {
            const int panels = parts_[part].panels;
            const int from = std::max(first - base, 0), to = std::min(last - base, panels);
            if (from < to) run_part(p, static_cast<int>(part), from, to, thread);
            base += panels;
        }
    }

  private:
    void run_part(Program& p, int number, int from, int to, int thread) {
        const AdaptedPart& part = parts_[static_cast<size_t>(number)];
        for (const AdaptedRows& piece : pieces(p)) {
            const LowRank* change = piece.adapter->at(part.site);
            if (change == nullptr) continue;
            MatmulArgs args = {};
            args.w = &change->b->packed();
            args.x = adapters(p).low(piece, number);
            args.x_stride = args.w->columns;
            args.out = row(p, part.out, piece.row);
            args.out_stride = width(p, part.out);
            args.accumulate = true;
            args.tokens = piece.tokens;
            multiply(p, args, from, to, thread);
        }
    }
    int panels_ = 0;
};

}  // namespace

std::vector<InstructionPointer> make_adapters(int in, std::vector<AdaptedPart> parts) {
    std::vector<InstructionPointer> made;
    made.push_back(std::make_unique<Reduce>(in, parts));
    made.push_back(std::make_unique<Expand>(in, std::move(parts)));
    return made;
}

}  // namespace heddle
