// What adapters add to a matmul: first all products a x, then b times these, which joins the
// output.
#include <algorithm>
#include <utility>

#include "instruction.h"
#include "instructions.h"
#include "row_instruction.h"
#include "tiles.h"

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
        if (change == nullptr || change->b == nullptr) return;
        MatmulArgs args = {};
        args.w = &change->a->packed();
        args.x = row(p, in_, piece.row);
        args.x_stride = width(p, in_);
        args.out = adapters(p).low(piece, part);
        args.out_stride = args.w->rows;
        args.tokens = piece.tokens;
        multiply(p, args, 0, change->a->panels(), thread);
        scale_low(*change, piece.factor, piece.tokens, args.out);
    }
};

// An item has some panels of all parts, and adds them for all pieces. The rows of a piece are few,
// so what DoRA multiplies is computed once more: the output may have a residual in it by now.
class Expand final : public AdapterInstruction {
  public:
    Expand(int in, Parts parts) : AdapterInstruction(in, std::move(parts)) {
        for (const AdaptedPart& part : parts_) panels_ += part.matrix->panels();
    }
    int items(const Program& p) const override {
        return changes(p) ? std::min(panels_, threads(p) * kMatmulItems) : 0;
    }
    void run(Program& p, int item, int thread) override {
        const auto [first, last] = cut(panels_, item, items(p));
        int base = 0;
        for (size_t part = 0; part < parts_.size(); ++part) {
            const int panels = parts_[part].matrix->panels();
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
            if (!change->gains.empty()) add_gains(p, part, piece, *change, from, to, thread);
            MatmulArgs args = {};
            args.w = change->b == nullptr ? &change->a->packed() : &change->b->packed();
            args.x = change->b == nullptr ? row(p, in_, piece.row) : adapters(p).low(piece, number);
            args.x_stride = args.w->columns;
            args.out = row(p, part.out, piece.row);
            args.out_stride = width(p, part.out);
            args.accumulate = change->b != nullptr;
            args.tokens = piece.tokens;
            multiply(p, args, from, to, thread);
        }
    }
    void add_gains(Program& p, const AdaptedPart& part, const AdaptedRows& piece,
                   const LowRank& change, int from, int to, int thread) {
        constexpr int kMostPanelRows = 16;
        float products[kPieceRows * kMostPanelRows];
        PackedMatrix w = part.matrix->packed();
        w.bias = nullptr;
        const int count = kernels(p).panel_rows;
        MatmulArgs args = {};
        args.w = &w;
        args.xq = buffer(p, in_).quantised();
        if (args.xq.q != nullptr) {
            args.xq.q += int64_t{piece.row} * args.xq.columns;
            args.xq.scales += int64_t{piece.row} * (args.xq.columns / kBlock);
        }
        args.x = row(p, in_, piece.row);
        args.x_stride = width(p, in_);
        args.out_stride = count;
        args.tokens = piece.tokens;
        for (int panel = from; panel < to; ++panel) {
            const int column = panel * count;
            args.out = products - column;  // the kernel adds the column of the first panel
            multiply(p, args, panel, panel + 1, thread);
            for (int i = 0; i < piece.tokens; ++i) {
                float* const out = row(p, part.out, piece.row + i);
                for (int j = column; j < std::min(column + count, w.rows); ++j) {
                    const float gain = piece.factor * change.gains[static_cast<size_t>(j)];
                    out[j] += gain * products[i * count + j - column];
                }
            }
        }
    }
    int panels_ = 0;
};

// Rows of a table: those of another table, or b times a row of a joins them.
class EmbedChanges final : public RowInstruction {
  public:
    EmbedChanges(int site, int out) : RowInstruction("adapters", out), site_(site), out_(out) {}
    void run_row(Program& p, int i, int thread) override {
        for (const Adapted& adapted : step(p).adapted) {
            if (i < adapted.row || i >= adapted.row + adapted.tokens) continue;
            const LowRank* change = adapted.adapter->at(site_);
            if (change != nullptr) change_row(p, i, *change, adapted.factor, thread);
        }
    }

  private:
    void change_row(Program& p, int i, const LowRank& change, float factor, int thread) {
        const int token = step(p).ids[i];
        if (change.b == nullptr) return change.a->dequantise_row(token, row(p, out_, i));
        LineFloats low(static_cast<size_t>(change.b->packed().columns));
        change.a->dequantise_row(token, low.data());
        scale_low(change, factor, 1, low.data());
        MatmulArgs args = {};
        args.w = &change.b->packed();
        args.x = low.data();
        args.x_stride = args.w->columns;
        args.out = row(p, out_, i);
        args.out_stride = width(p, out_);
        args.accumulate = true;
        args.tokens = 1;
        multiply(p, args, 0, change.b->panels(), thread);
    }
    int site_, out_;
};

}  // namespace

InstructionPointer make_embed_changes(int site, int out) {
    return std::make_unique<EmbedChanges>(site, out);
}

std::vector<InstructionPointer> make_adapters(int in, std::vector<AdaptedPart> parts) {
    std::vector<InstructionPointer> made;
    made.push_back(std::make_unique<Reduce>(in, parts));
    made.push_back(std::make_unique<Expand>(in, std::move(parts)));
    return made;
}

}  // namespace heddle
