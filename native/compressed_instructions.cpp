// Instructions of layers that attend to compressed positions; see compressed.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

// Items are blocks of columns of a span: an item reads and changes the state of its columns.
class Compress final : public Instruction {
  public:
    explicit Compress(Compression shape) : Instruction("compress"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) * blocks(p);
    }
    void run(Program& p, int index, int) override {
        const Span& span = step(p).spans[static_cast<size_t>(index / blocks(p))];
        CompressArgs args;
        args.dim = width(p, shape_.out);
        args.width = width(p, shape_.x);
        args.overlaps = shape_.overlaps;
        args.ratio = shape_.ratio;
        args.bias = shape_.bias.data();
        args.first_column = index % blocks(p) * kColumns;
        args.columns = std::min(kColumns, args.dim - args.first_column);
        args.x = row(p, shape_.x, span.row);
        args.gate = row(p, shape_.gate, span.row);
        args.stride = args.width;
        args.state_stride = 2 * int64_t{args.width};
        args.first_position = span.first_position;
        args.tokens = span.tokens;
        float* before = states(p).at(span.state) + shape_.place;
        float* kept = states(p).at(span.kept_state) + shape_.place;
        if (kept != before) copy(args, before, kept);
        args.state = kept;
        args.out = row(p, shape_.out, span.row);
        kernels(p).compress(args);
        if (kept == before) return;
        args.state = before;
        args.out = nullptr;
        args.tokens = span.certain;
        kernels(p).compress(args);
    }

  private:
    static constexpr int kColumns = 64;

    int blocks(const Program& p) const { return (width(p, shape_.out) + kColumns - 1) / kColumns; }
    // Copies the columns of the item, of what is compressed and of its gates.
    static void copy(const CompressArgs& a, const float* from, float* to) {
        const size_t bytes = sizeof(float) * static_cast<size_t>(a.columns);
        const int rows = a.ratio * (a.overlaps ? 2 : 1);
        for (int r = 0; r < rows; ++r) {
            for (int c = a.first_column; c < 2 * a.width; c += a.dim) {
                const int64_t at = r * a.state_stride + c;
                std::memcpy(to + at, from + at, bytes);
            }
        }
    }
    Compression shape_;
};

// Items are some heads of a token.
class AttendCompressed final : public Instruction {
  public:
    explicit AttendCompressed(CompressedAttention shape)
        : Instruction("attend"), shape_(std::move(shape)) {}
    int items(const Program& p) const override {
        return static_cast<int>(step(p).spans.size()) == 0 ? 0 : step(p).tokens * groups();
    }
    void run(Program& p, int index, int) override {
        const int token = index / groups(), first = index % groups() * kHeads;
        const Span& span = span_of(p, token);
        KvCache& kv = cache(p, shape_.cache);
        AttendCompressedArgs args;
        args.dim = width(p, shape_.q) / shape_.heads;
        args.heads = std::min(kHeads, shape_.heads - first);
        args.q = row(p, shape_.q, token) + first * args.dim;
        args.out = row(p, shape_.out, token) + first * args.dim;
        args.kv_type = kv.type();
        args.kv = kv.at(0, shape_.layer, 0);
        args.page_stride = kv.page_bytes();
        args.pages = span.tables[shape_.cache].pages;
        args.first_page = span.tables[shape_.cache].first;
        args.position = span.first_position + token - span.row;
        args.window = shape_.window;
        args.ratio = shape_.ratio;
        args.scale = shape_.scale;
        args.sinks = shape_.sinks.empty() ? nullptr : &shape_.sinks[static_cast<size_t>(first)];
        args.keys = std::min(args.position + 1, args.window) + (args.position + 1) / args.ratio;
        std::vector<float> scores(static_cast<size_t>(4 * args.keys));
        args.scratch = scores.data();
        kernels(p).attend_compressed(args);
    }

  private:
    static constexpr int kHeads = 4;

    int groups() const { return (shape_.heads + kHeads - 1) / kHeads; }
    static const Span& span_of(const Program& p, int token) {
        const auto after = [](int t, const Span& span) { return t < span.row; };
        const std::vector<Span>& spans = step(p).spans;
        return *(std::upper_bound(spans.begin(), spans.end(), token, after) - 1);
    }
    CompressedAttention shape_;
};

}  // namespace

InstructionPointer make_compress(Compression shape) {
    return std::make_unique<Compress>(std::move(shape));
}

InstructionPointer make_attend_compressed(CompressedAttention shape) {
    return std::make_unique<AttendCompressed>(std::move(shape));
}

}  // namespace heddle
