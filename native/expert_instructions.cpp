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
    explicit Group(Layer layer) : Instruction("route"), layer_(std::move(layer)) {}
    int items(const Program&) const override { return 1; }
    void run(Program& p, int, int) override { expert_rows(p).group(*layer_, step(p).tokens); }

  private:
    Layer layer_;
};

// Work on each row: one token at one of its experts.
class ExpertRowInstruction : public RowInstruction {
  public:
    ExpertRowInstruction(const char* kind, Layer layer, int shape)
        : RowInstruction(kind, shape), layer_(std::move(layer)) {}

  protected:
    int count(const Program& p) const override { return step(p).tokens * layer_->routing.used; }
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
        std::copy_n(from.q + token * from.columns, n, &rows.x_codes[static_cast<size_t>(i * n)]);
        const int64_t blocks = n / kBlock;
        std::copy_n(from.scales + token * (from.columns / kBlock), blocks,
                    &rows.x_scales[static_cast<size_t>(i * blocks)]);
    }

  private:
    int in_;
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
        const int64_t width = layer_->width();
        MatmulArgs args = {};
        args.w = &stack[static_cast<size_t>(of.expert)]->packed();
        if (layer_->quantised_in()) {
            args.xq = {rows.x_codes.data() + of.first * width,
                       rows.x_scales.data() + of.first * (width / kBlock), width};
        } else {
            args.x = rows.x.data() + of.first * width;
            args.x_stride = width;
        }
        args.out_stride = layer_->hidden();
        args.out = out.data() + of.first * args.out_stride;
        args.tokens = of.tokens;
        multiply(p, args, first_panel, last_panel, thread);
    }
    Layer layer_;
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
        kernels(p).quantise(hidden, n, rows.hidden_codes.data() + at,
                            rows.hidden_scales.data() + at / kBlock);
    }
};

// The weighted sum of down(hidden) over each token's experts. An item computes some columns of the
// output for all experts, so it alone adds to them, in the order of the experts.
class Down final : public Instruction {
  public:
    Down(Layer layer, int out) : Instruction("experts"), layer_(std::move(layer)), out_(out) {}
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
        for (const ExpertGroup& group : expert_rows(p).groups()) {
            for (int done = 0; done < group.tokens && !abandoned(p); done += kExpertTokens) {
                const int tokens = std::min(kExpertTokens, group.tokens - done);
                float* results = expert_rows(p).scratch(thread);
                multiply_group(p, group, done, tokens, first, last, columns, results, thread);
                for (int i = 0; i < tokens; ++i) {
                    const int at = group.first + done + i;
                    float* sum = row(p, out_, expert_rows(p).token(at)) + column;
                    const float weight = layer_->weighs_input ? 1.0f : expert_rows(p).weight(at);
                    kernels(p).add_scaled(results + int64_t{i} * columns, weight, columns, sum);
                }
            }
        }
    }

  private:
    // results (tokens, columns) of the panels [first, last).
    void multiply_group(Program& p, const ExpertGroup& group, int done, int tokens, int first,
                        int last, int columns, float* results, int thread) {
        const ExpertRows& rows = expert_rows(p);
        const int64_t hidden = layer_->hidden(), from = group.first + done;
        MatmulArgs args = {};
        args.w = &layer_->down[static_cast<size_t>(group.expert)]->packed();
        if (layer_->quantised_hidden()) {
            args.xq = {expert_rows(p).hidden_codes.data() + from * hidden,
                       expert_rows(p).hidden_scales.data() + from * (hidden / kBlock), hidden};
        } else {
            args.x = rows.gate.data() + from * hidden;
            args.x_stride = hidden;
        }
        // The kernel adds the column of the first panel, which is column 0 of the results.
        args.out = results - first * kernels(p).panel_rows;
        args.out_stride = columns;
        args.tokens = tokens;
        multiply(p, args, first, last, thread);
    }
    Layer layer_;
    int out_;
};

}  // namespace

std::vector<InstructionPointer> make_experts(std::shared_ptr<const ExpertLayer> layer, int in,
                                             int logits, int out) {
    std::vector<InstructionPointer> made;
    made.push_back(std::make_unique<Route>(layer, logits));
    made.push_back(std::make_unique<Group>(layer));
    made.push_back(std::make_unique<Gather>(layer, in));
    made.push_back(std::make_unique<GateUp>(layer));
    made.push_back(std::make_unique<Activate>(layer, in));
    made.push_back(std::make_unique<Down>(std::move(layer), out));
    return made;
}

}  // namespace heddle
