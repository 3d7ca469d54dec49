// The instructions of an expert layer: choose experts, sort tokens by expert, multiply.
//
// A token's arithmetic depends only on its own experts. Each row of gate, up and down is one chain
// of the matmul kernel, with any other tokens beside it. The results of a token's experts are added
// in the order of their index.
#include <algorithm>
#include <cstring>
#include <utility>

#include "experts.h"
#include "instruction.h"
#include "instructions.h"
#include "row_instruction.h"
#include "tiles.h"

namespace heddle {

namespace {

using Layer = std::shared_ptr<const ExpertLayer>;

// Items per thread that the matmuls are cut into.
constexpr int kItems = 6;

class Route final : public RowInstruction {
  public:
    Route(Layer layer, int logits)
        : RowInstruction("route", logits), layer_(std::move(layer)), logits_(logits) {}
    void run_row(Program& p, int i, int thread) override {
        ExpertRows& rows = expert_rows(p);
        const size_t at = static_cast<size_t>(i) * static_cast<size_t>(layer_->routing.used);
        route(kernels(p), layer_->routing, row(p, logits_, i), rows.scratch(thread),
              &rows.chosen[at], &rows.chosen_weights[at]);
    }

  private:
    Layer layer_;
    int logits_;
};

class Group final : public Instruction {
  public:
    Group(Layer layer, ExpertSites sites)
        : Instruction("route"), layer_(std::move(layer)), sites_(sites) {}
    int items(const Program&) const override { return 1; }
    void run(Program& p, int, int) override {
        expert_rows(p).group(*layer_, step(p).tokens);
        expert_rows(p).find_changed(step(p).adapted, sites_);
    }

  private:
    Layer layer_;
    ExpertSites sites_;
};

// Work on each row: one token at one of its experts.
class ExpertRowInstruction : public RowInstruction {
  public:
    ExpertRowInstruction(const char* kind, Layer layer, int shape)
        : RowInstruction(kind, shape), layer_(std::move(layer)) {}

  protected:
    int count(const Program& p) const override { return step(p).tokens * layer_->routing.used; }
    bool own_rows() const override { return false; }
    const ExpertLayer& layer() const { return *layer_; }

  private:
    Layer layer_;
};

// Copies the tokens' activations, so that an expert's rows lie side by side for the kernel.
class Gather final : public ExpertRowInstruction {
  public:
    Gather(Layer layer, int in) : ExpertRowInstruction("gather", std::move(layer), in), in_(in) {}
    void run_row(Program& p, int i, int) override {
        ExpertRows& rows = expert_rows(p);
        const int64_t n = layer().width(), token = rows.token(i);
        if (!layer().quantised_in()) {
            std::copy_n(row(p, in_, token), n, &rows.x[static_cast<size_t>(i * n)]);
            return;
        }
        const QuantisedRows from = buffer(p, in_).quantised();
        const int64_t blocks = n / kBlock;
        std::copy_n(from.q + token * from.columns, n, rows.x_coded.codes.data() + i * n);
        std::copy_n(from.scales + token * (from.columns / kBlock), blocks,
                    rows.x_coded.scales.data() + i * blocks);
    }

  private:
    int in_;
};

// The rows that the matmuls of gate and up, or of down, read.
struct Operands {
    CodedRows& coded;
    const float* floats;
    int64_t columns;
    bool quantised;

    static Operands of_input(ExpertRows& rows, const ExpertLayer& layer) {
        return {rows.x_coded, rows.x.data(), layer.width(), layer.quantised_in()};
    }
    static Operands of_down(ExpertRows& rows, const ExpertLayer& layer) {
        return {rows.hidden_coded, rows.gate.data(), layer.hidden(), layer.quantised_hidden()};
    }
    bool packs(const Kernels& kernels, int tokens) const {
        return quantised && kernels.packs_from > 0 && tokens >= kernels.packs_from;
    }
    // The arguments of a group's products with an expert's matrix.
    MatmulArgs args(const Kernels& kernels, const ExpertGroup& group, const Matrix& matrix) const {
        MatmulArgs args = {};
        args.w = &matrix.packed();
        args.tokens = group.tokens;
        if (quantised) {
            args.xq = coded.from(group.first, columns);
        } else {
            args.x = floats + group.first * columns;
            args.x_stride = columns;
        }
        if (packs(kernels, group.tokens)) {
            args.packed = {coded.tiles(group.first, columns), columns / kBlock, 0};
        }
        return args;
    }
};

// Packs the rows of groups with many tokens. How many items there are must follow from the step
// alone, because a late thread asks for their number when another layer may have other groups.
class PackGroups final : public Instruction {
  public:
    using Choice = Operands (*)(ExpertRows&, const ExpertLayer&);
    PackGroups(Layer layer, Choice choice)
        : Instruction("pack"), layer_(std::move(layer)), choice_(choice) {}
    bool in_short_steps() const override { return false; }
    int items(const Program& p) const override {
        const int rows = step(p).tokens * layer_->routing.used;
        const bool some = kernels(p).packs_from > 0 && rows >= kernels(p).packs_from;
        return some ? threads(p) * kItems : 0;
    }
    void run(Program& p, int item, int) override {
        const auto& groups = expert_rows(p).groups();
        const size_t count = static_cast<size_t>(items(p)), at = static_cast<size_t>(item);
        for (size_t g = groups.size() * at / count; g < groups.size() * (at + 1) / count; ++g) {
            pack_group(p, groups[g]);
        }
    }

  private:
    void pack_group(Program& p, const ExpertGroup& group) {
        const Operands rows = choice_(expert_rows(p), *layer_);
        if (!rows.packs(kernels(p), group.tokens)) return;
        const QuantisedRows from = rows.coded.from(group.first, rows.columns);
        uint8_t* const out = rows.coded.tiles(group.first, rows.columns);
        const int tiles = tiles_of(group.tokens, kernels(p).tile_tokens);
        for (int tile = 0; tile < tiles; ++tile) {
            kernels(p).pack(from, static_cast<int>(rows.columns), group.tokens, tile, out);
        }
    }
    Layer layer_;
    Choice choice_;
};

// gate(x), if experts have gates, and up(x) of all rows. The panels of all experts in use form one
// line, cut into pieces of about equal cost.
class GateUp final : public Instruction {
  public:
    explicit GateUp(Layer layer) : Instruction("experts"), layer_(std::move(layer)) {}
    int items(const Program& p) const override { return threads(p) * kItems; }
    void run(Program& p, int item, int thread) override {
        const ExpertRows& rows = expert_rows(p);
        const PanelPlace from = rows.cut(*layer_, item, items(p));
        const PanelPlace to = rows.cut(*layer_, item + 1, items(p));
        const int panels = layer_->panels_of_input();
        const int gates = layer_->gated() ? panels / 2 : 0;  // come first
        for (int g = from.group; g <= to.group; ++g) {
            const int first = g == from.group ? from.panel : 0;
            const int last = g == to.group ? to.panel : panels;
            run_stack(p, layer_->gate, expert_rows(p).gate, g, first, std::min(last, gates),
                      thread);
            run_stack(p, layer_->up, expert_rows(p).up, g, std::max(first - gates, 0), last - gates,
                      thread);
        }
    }

  private:
    void run_stack(Program& p, const std::vector<std::shared_ptr<const Matrix>>& stack,
                   std::vector<float>& out, int group, int first_panel, int last_panel,
                   int thread) {
        if (first_panel >= last_panel) return;
        ExpertRows& rows = expert_rows(p);
        const ExpertGroup& of = rows.groups()[static_cast<size_t>(group)];
        const Matrix& matrix = *stack[static_cast<size_t>(of.expert)];
        MatmulArgs args = Operands::of_input(rows, *layer_).args(kernels(p), of, matrix);
        args.out_stride = layer_->hidden();
        args.out = out.data() + of.first * args.out_stride;
        multiply(p, args, first_panel, last_panel, thread);
    }
    Layer layer_;
};

// What adapters do to experts. An item has the changed rows of some groups, so it alone adds to
// them, in the order of a token's adapters.
class ExpertChanges : public Instruction {
  public:
    ExpertChanges(Layer layer, ExpertSites sites)
        : Instruction("adapters"), layer_(std::move(layer)), sites_(sites) {}
    bool in_short_steps() const override { return false; }  // in those without adapters
    int items(const Program& p) const override {
        for (const Adapted& change : step(p).adapted) {
            if (change.adapter->changes(sites_.gate, sites_.end)) return threads(p) * kItems;
        }
        return 0;
    }
    void run(Program& p, int item, int thread) override {
        const size_t groups = expert_rows(p).groups().size();
        const auto [first, last] = cut(static_cast<int64_t>(groups), item, items(p));
        const auto [begin, end] =
            expert_rows(p).pieces(static_cast<size_t>(first), static_cast<size_t>(last));
        for (const ExpertPiece* piece = begin; piece < end; ++piece) change(p, *piece, thread);
    }

  protected:
    virtual void change(Program& p, const ExpertPiece& piece, int thread) = 0;
    // a x of a piece's rows, times the factors.
    void reduce(Program& p, const ExpertPiece& piece, const LowRank& of, const float* x,
                int thread) {
        MatmulArgs args = {};
        args.w = &of.a->packed();
        args.x = x;
        args.x_stride = args.w->columns;
        args.out = expert_rows(p).low(piece);
        args.out_stride = args.w->rows;
        args.tokens = piece.tokens;
        multiply(p, args, 0, of.a->panels(), thread);
        scale_low(of, piece.factor, piece.tokens, args.out);
    }
    Layer layer_;
    ExpertSites sites_;
};

// Adds b times the products `low`, in the panels [first, last), to `out`.
MatmulArgs expansion(const ExpertPiece& piece, const LowRank& of, const float* low, float* out,
                     int64_t out_stride) {
    MatmulArgs args = {};
    args.w = &of.b->packed();
    args.x = low;
    args.x_stride = args.w->columns;
    args.out = out;
    args.out_stride = out_stride;
    args.accumulate = true;
    args.tokens = piece.tokens;
    return args;
}

class GateUpChanges final : public ExpertChanges {
  public:
    GateUpChanges(Layer layer, ExpertSites sites, int in)
        : ExpertChanges(std::move(layer), sites), in_(in) {}

  protected:
    void change(Program& p, const ExpertPiece& piece, int thread) override {
        ExpertRows& rows = expert_rows(p);
        const int width = layer_->width(), hidden = layer_->hidden();
        const LowRank* gate =
            layer_->gated() ? piece.adapter->at(sites_.gate + piece.expert) : nullptr;
        const LowRank* up = piece.adapter->at(sites_.up + piece.expert);
        if (gate == nullptr && up == nullptr) return;
        float* const x = rows.scratch(thread);
        for (int i = 0; i < piece.tokens; ++i) {
            std::copy_n(row(p, in_, rows.token(piece.first + i)), width, x + int64_t{i} * width);
        }
        const int64_t at = int64_t{piece.first} * hidden;
        if (gate != nullptr) add(p, piece, *gate, x, rows.gate.data() + at, thread);
        if (up != nullptr) add(p, piece, *up, x, rows.up.data() + at, thread);
    }

  private:
    void add(Program& p, const ExpertPiece& piece, const LowRank& of, const float* x, float* out,
             int thread) {
        reduce(p, piece, of, x, thread);
        const float* low = expert_rows(p).low(piece);
        multiply(p, expansion(piece, of, low, out, layer_->hidden()), 0, of.b->panels(), thread);
    }
    int in_;
};

// Down reads the products that this instruction leaves.
class DownReduce final : public ExpertChanges {
  public:
    using ExpertChanges::ExpertChanges;

  protected:
    void change(Program& p, const ExpertPiece& piece, int thread) override {
        const LowRank* down = piece.adapter->at(sites_.down + piece.expert);
        const float* hidden = expert_rows(p).gate.data() + int64_t{piece.first} * layer_->hidden();
        if (down != nullptr) reduce(p, piece, *down, hidden, thread);
    }
};

class Activate final : public ExpertRowInstruction {
  public:
    Activate(Layer layer, int in) : ExpertRowInstruction("gated", std::move(layer), in) {}
    void run_row(Program& p, int i, int) override {
        ExpertRows& rows = expert_rows(p);
        const int n = layer().hidden();
        const int64_t at = int64_t{i} * n;
        float* hidden = rows.gate.data() + at;
        float* up = rows.up.data() + at;
        if (layer().weighs_input) {  // gate and up are linear, so their results grow as their input
            for (int j = 0; j < n; ++j) {
                hidden[j] *= rows.weight(i);
                up[j] *= rows.weight(i);
            }
        }
        if (layer().gated()) {
            kernels(p).gated[static_cast<int>(layer().activation)](hidden, up, n, hidden);
        } else {
            kernels(p).map[static_cast<int>(layer().map)](up, n, hidden);
        }
        if (!layer().quantised_hidden()) return;
        kernels(p).quantise(hidden, n, rows.hidden_coded.codes.data() + at,
                            rows.hidden_coded.scales.data() + at / kBlock);
    }
};

// The weighted sum of down(hidden) over each token's experts. An item computes some columns of the
// output for all experts, so it alone adds to them, in the order of the experts.
class Down final : public Instruction {
  public:
    Down(Layer layer, ExpertSites sites, int out)
        : Instruction("experts"), layer_(std::move(layer)), sites_(sites), out_(out) {}
    int items(const Program& p) const override {
        return std::min(layer_->panels_of_width(), threads(p) * kItems);
    }
    void run(Program& p, int item, int thread) override {
        const int64_t panels = layer_->panels_of_width();
        const int first = static_cast<int>(panels * item / items(p));
        const int last = static_cast<int>(panels * (item + 1) / items(p));
        const int panel_rows = kernels(p).panel_rows;
        const int column = first * panel_rows;
        const int columns = std::min(last * panel_rows, layer_->width()) - column;
        for (int i = 0; i < step(p).tokens; ++i) {
            std::fill_n(row(p, out_, i) + column, columns, 0.0f);
        }
        float* const results = expert_rows(p).scratch(thread);
        const auto& groups = expert_rows(p).groups();
        for (size_t g = 0; g < groups.size(); ++g) {
            const ExpertGroup& group = groups[g];
            if (abandoned(p)) return;
            multiply_group(p, group, first, last, columns, results, thread);
            const auto [begin, end] = expert_rows(p).pieces(g, g + 1);
            for (const ExpertPiece* piece = begin; piece < end; ++piece) {
                float* const of_piece = results + int64_t{piece->first - group.first} * columns;
                change_piece(p, *piece, first, last, columns, of_piece, thread);
            }
            for (int i = 0; i < group.tokens; ++i) {
                const int at = group.first + i;
                float* sum = row(p, out_, expert_rows(p).token(at)) + column;
                const float weight = layer_->weighs_input ? 1.0f : expert_rows(p).weight(at);
                kernels(p).add_scaled(results + int64_t{i} * columns, weight, columns, sum);
            }
        }
    }

  private:
    // results (tokens, columns) of the panels [first, last).
    void multiply_group(Program& p, const ExpertGroup& group, int first, int last, int columns,
                        float* results, int thread) {
        const Matrix& matrix = *layer_->down[static_cast<size_t>(group.expert)];
        MatmulArgs args =
            Operands::of_down(expert_rows(p), *layer_).args(kernels(p), group, matrix);
        // The kernel adds the column of the first panel, which is column 0 of the results.
        args.out = results - first * kernels(p).panel_rows;
        args.out_stride = columns;
        multiply(p, args, first, last, thread);
    }
    void change_piece(Program& p, const ExpertPiece& piece, int first, int last, int columns,
                      float* results, int thread) {
        const LowRank* down = piece.adapter->at(sites_.down + piece.expert);
        if (down == nullptr) return;
        float* const out = results - first * kernels(p).panel_rows;
        const float* low = expert_rows(p).low(piece);
        multiply(p, expansion(piece, *down, low, out, columns), first, last, thread);
    }
    Layer layer_;
    ExpertSites sites_;
    int out_;
};

}  // namespace

std::vector<InstructionPointer> make_experts(std::shared_ptr<const ExpertLayer> layer,
                                             const ExpertSites& sites, int in, int logits,
                                             int out) {
    std::vector<InstructionPointer> made;
    made.push_back(std::make_unique<Route>(layer, logits));
    made.push_back(std::make_unique<Group>(layer, sites));
    made.push_back(std::make_unique<Gather>(layer, in));
    made.push_back(std::make_unique<PackGroups>(layer, Operands::of_input));
    made.push_back(std::make_unique<GateUp>(layer));
    made.push_back(std::make_unique<GateUpChanges>(layer, sites, in));
    made.push_back(std::make_unique<Activate>(layer, in));
    made.push_back(std::make_unique<PackGroups>(layer, Operands::of_down));
    made.push_back(std::make_unique<DownReduce>(layer, sites));
    made.push_back(std::make_unique<Down>(std::move(layer), sites, out));
    return made;
}

}  // namespace heddle
