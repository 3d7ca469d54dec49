// Instructions of recurrent layers. They read and change the fixed-size states of sequences.
#include <algorithm>
#include <cstring>
#include <utility>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

// Items are runs of columns of a span: an item reads the old state of its columns, and changes it.
class Conv final : public Instruction {
  public:
    explicit Conv(Convolution shape) : Instruction("conv"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * runs(p);
    }
    void run(Program& p, int index, int) override {
        const Span& span = step(p).spans[static_cast<size_t>(index / runs(p))];
        const int first = index % runs(p) * kColumns, all = width(p, shape_.in);
        const int columns = std::min(kColumns, all - first), before = shape_.taps - 1;
        float* state = states(p).at(span.state) + shape_.place + first;
        ConvArgs args;
        args.x = row(p, shape_.in, span.row) + first;
        args.state = state;
        args.filters = shape_.filters.data() + first;
        args.bias = shape_.bias.empty() ? nullptr : shape_.bias.data() + first;
        args.out = row(p, shape_.out, span.row) + first;
        args.stride = args.state_stride = all;
        args.columns = columns;
        args.taps = shape_.taps;
        args.tokens = span.tokens;
        args.silu = shape_.silu;
        kernels(p).conv(args);
        float* kept = states(p).at(span.kept_state) + shape_.place + first;
        if (kept != state) shift(args, state, kept, span.tokens, before);
        shift(args, state, state, kept == state ? span.tokens : span.certain, before);
    }

  private:
    static constexpr int kColumns = 256;

    int runs(const Program& p) const { return (width(p, shape_.in) + kColumns - 1) / kColumns; }
    // Lets the first `count` rows of x follow the rows of `from`, and keeps the last `before`.
    static void shift(const ConvArgs& a, const float* from, float* to, int count, int before) {
        const size_t bytes = static_cast<size_t>(a.columns) * sizeof(float);
        for (int i = 0; i < before; ++i) {
            const int source = i + count - before;
            const float* rows =
                source < 0 ? from + (i + count) * a.state_stride : a.x + source * a.stride;
            float* target = to + i * a.state_stride;
            if (target != rows) std::memcpy(target, rows, bytes);
        }
    }
    Convolution shape_;
};

// Items are heads of a span, or blocks of their columns if there are few heads.
class LinearAttend final : public Instruction {
  public:
    explicit LinearAttend(LinearAttention shape)
        : Instruction("linear_attend"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * shape_.heads * splits(p);
    }
    void run(Program& p, int index, int thread) override {
        const int splits_of_head = splits(p), per_span = shape_.heads * splits_of_head;
        const Span& span = step(p).spans[static_cast<size_t>(index / per_span)];
        const int head = index % per_span / splits_of_head, split = index % splits_of_head;
        const int key_head =
            shape_.tiled ? head % shape_.key_heads : head / (shape_.heads / shape_.key_heads);
        const int64_t size = int64_t{shape_.key_dim} * shape_.value_dim;
        const int rows_of_decay = width(p, shape_.decay) / shape_.heads;
        LinearAttendArgs args;
        args.q = row(p, shape_.q, span.row) + key_head * shape_.key_dim;
        args.k = row(p, shape_.k, span.row) + key_head * shape_.key_dim;
        args.v = row(p, shape_.v, span.row) + head * shape_.value_dim;
        args.out = row(p, shape_.out, span.row) + head * shape_.value_dim;
        args.decay = row(p, shape_.decay, span.row) + head * rows_of_decay;
        args.strength = row(p, shape_.strength, span.row) + head;
        args.key_stride = width(p, shape_.q);
        args.value_stride = width(p, shape_.v);
        args.decay_stride = width(p, shape_.decay);
        args.strength_stride = width(p, shape_.strength);
        args.state = states(p).at(span.state) + shape_.place + head * size;
        args.kept = states(p).at(span.kept_state) + shape_.place + head * size;
        args.certain = span.certain;
        args.key_dim = shape_.key_dim;
        args.value_dim = shape_.value_dim;
        const int blocks = (shape_.value_dim + kStateColumns - 1) / kStateColumns;
        args.first_column = blocks * split / splits_of_head * kStateColumns;
        args.last_column =
            std::min(blocks * (split + 1) / splits_of_head * kStateColumns, shape_.value_dim);
        args.tokens = span.tokens;
        args.decay_of_rows = rows_of_decay > 1;
        args.corrects = shape_.corrects;
        args.skips = !shape_.skip.empty();
        args.skip = args.skips ? shape_.skip[static_cast<size_t>(head)] : 0.0f;
        args.scratch = scratch(p, thread);
        kernels(p).linear_attend(args);
    }

  private:
    // A head is one item if there are enough of them for the threads.
    int splits(const Program& p) const {
        constexpr int kItemsPerThread = 4;
        const int heads = static_cast<int>(step(p).spans.size()) * shape_.heads;
        if (heads >= kItemsPerThread * threads(p)) return 1;
        return (shape_.value_dim + kStateColumns - 1) / kStateColumns;
    }
    LinearAttention shape_;
};

// Items are runs of channels of a span.
class SelectiveScan final : public Instruction {
  public:
    SelectiveScan(Scan shape, int channels)
        : Instruction("selective_scan"), shape_(std::move(shape)) {
        // In the file, the rates of a channel lie beside each other.
        const std::vector<float> given = std::move(shape_.rates);
        const size_t states = given.size() / static_cast<size_t>(channels);
        shape_.rates.reserve(given.size());
        for (int first = 0; first < channels; first += kScanChannels) {
            const int last = std::min(first + kScanChannels, channels);
            for (size_t i = 0; i < states; ++i) {
                for (int c = first; c < last; ++c) {
                    shape_.rates.push_back(given[static_cast<size_t>(c) * states + i]);
                }
            }
        }
    }
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * runs(p);
    }
    void run(Program& p, int index, int) override {
        const Span& span = step(p).spans[static_cast<size_t>(index / runs(p))];
        const int first = index % runs(p) * kChannels, all = width(p, shape_.v);
        const int states = width(p, shape_.k);
        const int64_t place = shape_.place + int64_t{first} * states;
        SelectiveScanArgs args;
        args.q = row(p, shape_.q, span.row);
        args.k = row(p, shape_.k, span.row);
        args.v = row(p, shape_.v, span.row) + first;
        args.step = row(p, shape_.step, span.row) + first;
        args.rates = shape_.rates.data() + int64_t{first} * states;
        args.skip = shape_.skip.data() + first;
        args.out = row(p, shape_.out, span.row) + first;
        args.stride = all;
        args.state = Instruction::states(p).at(span.state) + place;
        args.kept = Instruction::states(p).at(span.kept_state) + place;
        args.certain = span.certain;
        args.states = states;
        args.channels = std::min(kChannels, all - first);
        args.tokens = span.tokens;
        kernels(p).selective_scan(args);
    }

  private:
    static constexpr int kChannels = 4 * kScanChannels;

    int runs(const Program& p) const { return (width(p, shape_.v) + kChannels - 1) / kChannels; }
    Scan shape_;
};

// Items are runs of columns of a span: an item reads the old row of its columns, and changes it.
class TokenShift final : public Instruction {
  public:
    explicit TokenShift(Shift shape) : Instruction("token_shift"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * runs(p);
    }
    void run(Program& p, int index, int) override {
        const Span& span = step(p).spans[static_cast<size_t>(index / runs(p))];
        const int first = index % runs(p) * kColumns, all = width(p, shape_.in);
        float* state = states(p).at(span.state) + shape_.place + first;
        float* kept = states(p).at(span.kept_state) + shape_.place + first;
        ShiftArgs args;
        args.x = row(p, shape_.in, span.row) + first;
        args.before = state;
        args.shares = shape_.shares.data() + first;
        args.out = row(p, shape_.out, span.row) + first;
        args.stride = all;
        args.columns = std::min(kColumns, all - first);
        args.parts = width(p, shape_.out) / all;
        args.tokens = span.tokens;
        kernels(p).token_shift(args);
        keep(args, span.tokens, kept);
        if (kept != state && span.certain > 0) keep(args, span.certain, state);
    }

  private:
    static constexpr int kColumns = 256;

    int runs(const Program& p) const { return (width(p, shape_.in) + kColumns - 1) / kColumns; }
    // The last of the first `count` rows of x.
    static void keep(const ShiftArgs& a, int count, float* to) {
        const size_t bytes = static_cast<size_t>(a.columns) * sizeof(float);
        std::memcpy(to, a.x + (count - 1) * a.stride, bytes);
    }
    Shift shape_;
};

// Items are heads of a span.
class RwkvAttend final : public Instruction {
  public:
    explicit RwkvAttend(RwkvAttention shape)
        : Instruction("rwkv_attend"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * shape_.heads;
    }
    void run(Program& p, int index, int thread) override {
        const Span& span = step(p).spans[static_cast<size_t>(index / shape_.heads)];
        const int all = width(p, shape_.out), size = all / shape_.heads;
        const int head = index % shape_.heads, first = head * size;
        const int64_t place = shape_.place + int64_t{first} * size;
        RwkvArgs args;
        args.r = row(p, shape_.r, span.row) + first;
        args.k = row(p, shape_.k, span.row) + first;
        args.v = row(p, shape_.v, span.row) + first;
        args.decay = row(p, shape_.decay, span.row) + first;
        args.rate = row(p, shape_.rate, span.row) + first;
        args.out = row(p, shape_.out, span.row) + first;
        args.removal = shape_.removal.data() + first;
        args.replacement = shape_.replacement.data() + first;
        args.bonus = shape_.bonus.data() + first;
        args.norm = shape_.norm.data() + first;
        args.norm_bias = shape_.norm_bias.data() + first;
        args.stride = all;
        args.state = states(p).at(span.state) + place;
        args.kept = states(p).at(span.kept_state) + place;
        args.certain = span.certain;
        args.size = size;
        args.tokens = span.tokens;
        args.eps = shape_.eps;
        args.scratch = scratch(p, thread);
        kernels(p).rwkv_attend(args);
    }

  private:
    RwkvAttention shape_;
};

}  // namespace

InstructionPointer make_conv(Convolution shape) { return std::make_unique<Conv>(std::move(shape)); }

InstructionPointer make_linear_attend(LinearAttention shape) {
    return std::make_unique<LinearAttend>(std::move(shape));
}

InstructionPointer make_selective_scan(Scan shape, int channels) {
    return std::make_unique<SelectiveScan>(std::move(shape), channels);
}

InstructionPointer make_token_shift(Shift shape) {
    return std::make_unique<TokenShift>(std::move(shape));
}

InstructionPointer make_rwkv_attend(RwkvAttention shape) {
    return std::make_unique<RwkvAttend>(std::move(shape));
}

}  // namespace heddle
