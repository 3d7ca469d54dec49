// Instructions that work on each row separately.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "instruction.h"
#include "instructions.h"
#include "row_instruction.h"

namespace heddle {

namespace {

class Embed final : public RowInstruction {
  public:
    Embed(std::shared_ptr<const Matrix> table, int out, Lookups by, int first)
        : RowInstruction("embed", out),
          table_(std::move(table)),
          out_(out),
          by_(by),
          first_(first) {}
    void run_row(Program& p, int i, int) override {
        const int32_t* of = by_ == Lookups::kPositions ? step(p).positions : step(p).ids;
        const int at = first_ + of[i];
        table_->dequantise_row(at < table_->packed().rows ? at : 0, row(p, out_, i));
    }

  private:
    std::shared_ptr<const Matrix> table_;
    int out_;
    Lookups by_;
    int first_;
};

// Rows by the number of separators before a token in its sequence.
class EmbedSegments final : public Instruction {
  public:
    EmbedSegments(std::shared_ptr<const Matrix> table, int separator, int out)
        : Instruction("embed"), table_(std::move(table)), separator_(separator), out_(out) {}
    int items(const Program& p) const override { return static_cast<int>(step(p).spans.size()); }
    void run(Program& p, int item, int) override {
        const Span& span = step(p).spans[item];
        const int last = table_->packed().rows - 1;
        for (int i = span.row, segment = 0; i < span.row + span.tokens; ++i) {
            table_->dequantise_row(segment, row(p, out_, i));
            if (step(p).ids[i] == separator_) segment = std::min(segment + 1, last);
        }
    }

  private:
    std::shared_ptr<const Matrix> table_;
    int separator_, out_;
};

// Rows of the token before each one in its sequence.
class EmbedPrevious final : public Instruction {
  public:
    EmbedPrevious(std::shared_ptr<const Matrix> table, int start, int out)
        : Instruction("embed"), table_(std::move(table)), start_(start), out_(out) {}
    int items(const Program& p) const override { return static_cast<int>(step(p).spans.size()); }
    void run(Program& p, int item, int) override {
        const Span& span = step(p).spans[item];
        for (int i = span.row, at = start_; i < span.row + span.tokens; ++i) {
            table_->dequantise_row(at < table_->packed().rows ? at : 0, row(p, out_, i));
            at = step(p).ids[i];
        }
    }

  private:
    std::shared_ptr<const Matrix> table_;
    int start_, out_;
};

// Each row becomes the mean of the rows of its sequence, added in float64 in their order.
class MeanRows final : public Instruction {
  public:
    MeanRows(int in, int out) : Instruction("pool"), in_(in), out_(out) {}
    int items(const Program& p) const override { return static_cast<int>(step(p).spans.size()); }
    void run(Program& p, int item, int) override {
        const Span& span = step(p).spans[item];
        const int n = width(p, in_);
        std::vector<double> sum(static_cast<size_t>(n));
        for (int i = 0; i < span.tokens; ++i) {
            const float* x = row(p, in_, span.row + i);
            for (int c = 0; c < n; ++c) sum[c] += static_cast<double>(x[c]);
        }
        for (int i = 0; i < span.tokens; ++i) {
            float* out = row(p, out_, span.row + i);
            for (int c = 0; c < n; ++c) out[c] = static_cast<float>(sum[c] / span.tokens);
        }
    }

  private:
    int in_, out_;
};

class Norm final : public RowInstruction {
  public:
    Norm(int in, std::vector<float> weight, float eps, int out, bool quantise)
        : RowInstruction("norm", out),
          in_(in),
          weight_(std::move(weight)),
          eps_(eps),
          out_(out),
          quantise_(quantise) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).norm(row(p, in_, i), weight_.data(), width(p, in_), eps_, row(p, out_, i));
        if (quantise_) quantise_row(p, out_, i);
    }

  private:
    int in_;
    std::vector<float> weight_;
    float eps_;
    int out_;
    bool quantise_;
};

class LayerNorm final : public RowInstruction {
  public:
    LayerNorm(int in, std::vector<float> weight, std::vector<float> bias, float eps, int out,
              bool quantise)
        : RowInstruction("layer_norm", out),
          in_(in),
          weight_(std::move(weight)),
          bias_(std::move(bias)),
          eps_(eps),
          out_(out),
          quantise_(quantise) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).layer_norm(row(p, in_, i), weight_.data(), bias_.data(), width(p, in_), eps_,
                              row(p, out_, i));
        if (quantise_) quantise_row(p, out_, i);
    }

  private:
    int in_;
    std::vector<float> weight_, bias_;
    float eps_;
    int out_;
    bool quantise_;
};

class Quantise final : public RowInstruction {
  public:
    explicit Quantise(int in) : RowInstruction("quantise", in), in_(in) {}
    void run_row(Program& p, int i, int) override { quantise_row(p, in_, i); }

  private:
    int in_;
};

class NormHeads final : public RowInstruction {
  public:
    NormHeads(int in, std::vector<float> weight, float eps, int heads)
        : RowInstruction("norm_heads", in),
          in_(in),
          weight_(std::move(weight)),
          eps_(eps),
          heads_(heads) {}
    void run_row(Program& p, int i, int) override {
        const int head_dim = width(p, in_) / heads_;
        const bool own = static_cast<int>(weight_.size()) > head_dim;
        for (int h = 0; h < heads_; ++h) {
            float* x = row(p, in_, i) + h * head_dim;
            kernels(p).norm(x, weight_.data() + (own ? h * head_dim : 0), head_dim, eps_, x);
        }
    }

  private:
    int in_;
    std::vector<float> weight_;
    float eps_;
    int heads_;
};

class ScaleBy final : public RowInstruction {
  public:
    ScaleBy(int in, float factor) : RowInstruction("scale", in), in_(in), factor_(factor) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).scale(row(p, in_, i), factor_, width(p, in_), row(p, in_, i));
    }

  private:
    int in_;
    float factor_;
};

class SoftCap final : public RowInstruction {
  public:
    SoftCap(int in, float cap) : RowInstruction("soft_cap", in), in_(in), cap_(cap) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).soft_cap(row(p, in_, i), cap_, width(p, in_), row(p, in_, i));
    }

  private:
    int in_;
    float cap_;
};

class Gated final : public RowInstruction {
  public:
    Gated(Activation activation, int gate, int up, int out, bool quantise, int above)
        : RowInstruction("gated", out),
          activation_(activation),
          gate_(gate),
          up_(up),
          out_(out),
          quantise_(quantise),
          above_(above) {}
    bool in_short_steps() const override { return above_ == 0; }
    void run_row(Program& p, int i, int) override {
        const auto kernel = kernels(p).gated[static_cast<int>(activation_)];
        kernel(row(p, gate_, i), row(p, up_, i), width(p, out_), row(p, out_, i));
        if (quantise_) quantise_row(p, out_, i);
    }

  private:
    int count(const Program& p) const override {
        return rows(p, out_) > above_ || adapted(p) ? rows(p, out_) : 0;
    }
    bool own_rows() const override { return above_ == 0; }

    Activation activation_;
    int gate_, up_, out_;
    bool quantise_;
    int above_;
};

// out = x * sigmoid(gate), or x * gate, with a gate for each head of a row.
class GateRows final : public RowInstruction {
  public:
    GateRows(Activation activation, int x, int gate, int out)
        : RowInstruction("gated", out), activation_(activation), x_(x), gate_(gate), out_(out) {}
    void run_row(Program& p, int i, int) override {
        const int heads = width(p, gate_), n = width(p, out_) / heads;
        for (int h = 0; h < heads; ++h) {
            float factor = row(p, gate_, i)[h];
            if (activation_ == Activation::kSigmoid) {
                kernels(p).exp_all(row(p, gate_, i) + h, 1, 0.0f, -1.0f, &factor);
                factor = 1.0f / (1.0f + factor);
            }
            kernels(p).scale(row(p, x_, i) + h * n, factor, n, row(p, out_, i) + h * n);
        }
    }

  private:
    Activation activation_;
    int x_, gate_, out_;
};

// Each head of `out` is a sum of the heads of x. A row of `factors` has those of the first sum,
// then those of the second one.
class MixHeads final : public RowInstruction {
  public:
    MixHeads(int x, int factors, int heads, int out)
        : RowInstruction("mix", out), x_(x), factors_(factors), heads_(heads), out_(out) {}
    void run_row(Program& p, int i, int) override {
        const float* x = row(p, x_, i);
        const float* factors = row(p, factors_, i);
        const int n = width(p, x_) / heads_;
        float* end = row(p, out_, i) + width(p, out_);
        for (float* out = row(p, out_, i); out < end; out += n, factors += heads_) {
            mix(p, x, factors, n, out);
        }
    }

  private:
    void mix(const Program& p, const float* x, const float* factors, int n, float* out) const {
        if (n == 1) {
            *out = kernels(p).dot(x, factors, heads_);
            return;
        }
        kernels(p).scale(x, factors[0], n, out);
        for (int j = 1; j < heads_; ++j) kernels(p).add_scaled(x + j * n, factors[j], n, out);
    }

    int x_, factors_, heads_, out_;
};

class Add final : public RowInstruction {
  public:
    Add(int x, int y, int out) : RowInstruction("add", out), x_(x), y_(y), out_(out) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).add(row(p, x_, i), row(p, y_, i), width(p, out_), row(p, out_, i));
    }

  private:
    int x_, y_, out_;
};

class TakeRows final : public RowInstruction {
  public:
    TakeRows(int in, int out) : RowInstruction("take", out), in_(in), out_(out) {}
    // A wider output takes the rows after the wanted one, too.
    void run_row(Program& p, int i, int) override {
        std::memcpy(row(p, out_, i), row(p, in_, token_row(p, i)),
                    static_cast<size_t>(width(p, out_)) * sizeof(float));
    }

  private:
    int in_, out_;
};

// The columns of each head from `first` on, as many as the output has for each head. If the
// output has more than a head, zeros follow its columns.
class TakeColumns final : public RowInstruction {
  public:
    TakeColumns(int in, int first, int heads, int out)
        : RowInstruction("take", out), in_(in), first_(first), heads_(heads), out_(out) {}
    void run_row(Program& p, int i, int) override {
        const int whole = width(p, in_) / heads_, taken = width(p, out_) / heads_;
        const int copied = std::min(taken, whole - first_);
        for (int h = 0; h < heads_; ++h) {
            float* const out = row(p, out_, i) + h * taken;
            std::memcpy(out, row(p, in_, i) + h * whole + first_,
                        static_cast<size_t>(copied) * sizeof(float));
            std::fill(out + copied, out + taken, 0.0f);
        }
    }

  private:
    int in_, first_, heads_, out_;
};

// A kernel that maps each element, in place.
class Activate final : public RowInstruction {
  public:
    Activate(Map map, int in, bool quantise)
        : RowInstruction("activate", in), map_(map), in_(in), quantise_(quantise) {}
    void run_row(Program& p, int i, int) override {
        kernels(p).map[static_cast<int>(map_)](row(p, in_, i), width(p, in_), row(p, in_, i));
        if (quantise_) quantise_row(p, in_, i);
    }

  private:
    Map map_;
    int in_;
    bool quantise_;
};

class StepSize final : public RowInstruction {
  public:
    StepSize(int in, std::vector<float> bias, float least, float most)
        : RowInstruction("activate", in),
          in_(in),
          bias_(std::move(bias)),
          least_(least),
          most_(most) {}
    void run_row(Program& p, int i, int) override {
        float* x = row(p, in_, i);
        kernels(p).step_size(x, bias_.data(), width(p, in_), least_, most_, x);
    }

  private:
    int in_;
    std::vector<float> bias_;
    float least_, most_;
};

// exp(x * rate)
class Decay final : public RowInstruction {
  public:
    Decay(int in, std::vector<float> rates, int out)
        : RowInstruction("activate", out), in_(in), out_(out) {
        rates_ = std::move(rates);
    }
    void run_row(Program& p, int i, int) override {
        const int n = width(p, in_), each = n / static_cast<int>(rates_.size());
        const float* x = row(p, in_, i);
        float* out = row(p, out_, i);
        for (int c = 0; c < n; ++c) out[c] = x[c] * rates_[static_cast<size_t>(c / each)];
        kernels(p).exp_all(out, n, 0.0f, 1.0f, out);
    }

  private:
    int in_, out_;
    std::vector<float> rates_;
};

// The columns of x, then those of y.
class Join final : public RowInstruction {
  public:
    Join(int x, int y, int out) : RowInstruction("join", out), x_(x), y_(y), out_(out) {}
    void run_row(Program& p, int i, int) override {
        const size_t first = static_cast<size_t>(width(p, x_));
        std::memcpy(row(p, out_, i), row(p, x_, i), first * sizeof(float));
        std::memcpy(row(p, out_, i) + first, row(p, y_, i),
                    static_cast<size_t>(width(p, y_)) * sizeof(float));
    }

  private:
    int x_, y_, out_;
};

class Rope final : public RowInstruction {
  public:
    Rope(int in, int table, int heads, int first, std::vector<int> axes)
        : RowInstruction("rope", in),
          in_(in),
          table_(table),
          heads_(heads),
          first_(first),
          axes_(std::move(axes)) {}
    void run_row(Program& p, int i, int) override {
        const RopeTable& table = rope(p, table_);
        const int pairs = table.dim / 2, head_dim = width(p, in_) / heads_;
        const int64_t at = static_cast<int64_t>(step(p).positions[i]) * pairs;
        const float* c = table.cosine.data() + at;
        const float* s = table.sine.data() + at;
        float of_axes[2][kMostAxisPairs];
        if (!axes_.empty()) {
            gather(p, table, i, of_axes[0], of_axes[1]);
            c = of_axes[0];
            s = of_axes[1];
        }
        for (int h = 0; h < heads_; ++h) {
            float* x = row(p, in_, i) + h * head_dim + first_;
            if (table.interleaved) {
                rotate<2>(x, x + 1, c, s, pairs);
            } else {
                rotate<1>(x, x + pairs, c, s, pairs);
            }
        }
    }

  private:
    // Each pair's rotation by the place of its axis.
    void gather(const Program& p, const RopeTable& table, int i, float* c, float* s) const {
        const int32_t* places = step(p).places + static_cast<int64_t>(i) * step(p).axes;
        const int pairs = table.dim / 2;
        for (int pair = 0; pair < pairs; ++pair) {
            const int64_t at = static_cast<int64_t>(places[axes_[pair]]) * pairs + pair;
            c[pair] = table.cosine.data()[at];
            s[pair] = table.sine.data()[at];
        }
    }
    template <int Stride>
    static void rotate(float* x, float* y, const float* c, const float* s, int pairs) {
        for (int i = 0; i < pairs; ++i) {
            const float a = x[i * Stride], b = y[i * Stride];
            x[i * Stride] = a * c[i] - b * s[i];
            y[i * Stride] = a * s[i] + b * c[i];
        }
    }
    int in_, table_, heads_, first_;
    std::vector<int> axes_;
};

// Rows of pictures in the place of those of their tokens, or added to them.
class See final : public RowInstruction {
  public:
    See(int in, int first, bool adds)
        : RowInstruction("see", in), in_(in), first_(first), adds_(adds) {}
    bool in_short_steps() const override { return false; }
    void run_row(Program& p, int i, int) override {
        for (const SeenRows& seen : step(p).seen) {
            if (i < seen.row || i >= seen.row + seen.tokens) continue;
            const float* from = seen.values + int64_t{i - seen.row} * seen.width + first_;
            float* to = row(p, in_, i);
            for (int c = 0; c < width(p, in_); ++c) to[c] = adds_ ? to[c] + from[c] : from[c];
        }
    }

  private:
    int in_, first_;
    bool adds_;
};

class Sample final : public Instruction {
  public:
    explicit Sample(int logits) : Instruction("sample"), logits_(logits) {}
    // Sampled rows come before all others, and fit the first pass.
    int items(const Program& p) const override {
        return first_row(p) == 0 ? static_cast<int>(step(p).draws.size()) : 0;
    }
    void run(Program& p, int item, int) override {
        Step& s = step(p);
        // The caller sets this flag before it computes, so it never waits here for itself.
        while (!s.may_sample.load(std::memory_order_acquire)) std::this_thread::yield();
        const Draw& draw = s.draws[item];
        for (int i = 0; i < draw.count && draw.sampler->may_pick(i); ++i) {
            const int r = draw.first + i;
            s.picks[item].push_back(
                draw.sampler->pick(kernels(p), row(p, logits_, r), width(p, logits_), i));
            // Rows after a wrong guess are of another text. A failed pick equals no guess.
            const bool more = i + 1 < draw.count;
            if (more && s.picks[item].back().token != s.ids[s.rows[r] + 1]) break;
        }
    }

  private:
    int logits_;
};

}  // namespace

InstructionPointer make_embed(std::shared_ptr<const Matrix> table, int out, Lookups by, int first) {
    return std::make_unique<Embed>(std::move(table), out, by, first);
}

InstructionPointer make_embed_segments(std::shared_ptr<const Matrix> table, int separator,
                                       int out) {
    return std::make_unique<EmbedSegments>(std::move(table), separator, out);
}

InstructionPointer make_embed_previous(std::shared_ptr<const Matrix> table, int start, int out) {
    return std::make_unique<EmbedPrevious>(std::move(table), start, out);
}

InstructionPointer make_mean_rows(int in, int out) { return std::make_unique<MeanRows>(in, out); }

InstructionPointer make_norm(int in, std::vector<float> weight, float eps, int out, bool quantise) {
    return std::make_unique<Norm>(in, std::move(weight), eps, out, quantise);
}

InstructionPointer make_layer_norm(int in, std::vector<float> weight, std::vector<float> bias,
                                   float eps, int out, bool quantise) {
    return std::make_unique<LayerNorm>(in, std::move(weight), std::move(bias), eps, out, quantise);
}

InstructionPointer make_quantise(int in) { return std::make_unique<Quantise>(in); }

InstructionPointer make_norm_heads(int in, std::vector<float> weight, float eps, int heads) {
    return std::make_unique<NormHeads>(in, std::move(weight), eps, heads);
}

InstructionPointer make_scale(int in, float factor) {
    return std::make_unique<ScaleBy>(in, factor);
}

InstructionPointer make_soft_cap(int in, float cap) { return std::make_unique<SoftCap>(in, cap); }

InstructionPointer make_gated(Activation activation, int gate, int up, int out, bool quantise,
                              int above) {
    return std::make_unique<Gated>(activation, gate, up, out, quantise, above);
}

InstructionPointer make_gate_rows(Activation activation, int x, int gate, int out) {
    return std::make_unique<GateRows>(activation, x, gate, out);
}

InstructionPointer make_mix_heads(int x, int factors, int heads, int out) {
    return std::make_unique<MixHeads>(x, factors, heads, out);
}

InstructionPointer make_add(int x, int y, int out) { return std::make_unique<Add>(x, y, out); }

InstructionPointer make_take_rows(int in, int out) { return std::make_unique<TakeRows>(in, out); }

InstructionPointer make_take_columns(int in, int first, int heads, int out) {
    return std::make_unique<TakeColumns>(in, first, heads, out);
}

InstructionPointer make_activate(Map map, int in, bool quantise) {
    return std::make_unique<Activate>(map, in, quantise);
}

InstructionPointer make_step_size(int in, std::vector<float> bias, float least, float most) {
    return std::make_unique<StepSize>(in, std::move(bias), least, most);
}

InstructionPointer make_decay(int in, std::vector<float> rates, int out) {
    return std::make_unique<Decay>(in, std::move(rates), out);
}

InstructionPointer make_join(int x, int y, int out) { return std::make_unique<Join>(x, y, out); }

InstructionPointer make_rope(int in, int table, int heads, int first, std::vector<int> axes) {
    return std::make_unique<Rope>(in, table, heads, first, std::move(axes));
}

InstructionPointer make_see(int in, int first, bool adds) {
    return std::make_unique<See>(in, first, adds);
}

InstructionPointer make_sample(int logits) { return std::make_unique<Sample>(logits); }

}  // namespace heddle
