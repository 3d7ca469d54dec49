// Instructions that write to the KV cache and read it.
#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

class StoreKv final : public Instruction {
  public:
    StoreKv(int k, int v, int layer) : Instruction("store_kv"), k_(k), v_(v), layer_(layer) {}
    int items(const Program& p) const override { return static_cast<int>(step(p).spans.size()); }
    void run(Program& p, int item, int) override {
        const Span& span = step(p).spans[item];
        for (int i = 0; i < span.tokens; ++i) store(p, span, i);
    }

  private:
    void store(Program& p, const Span& span, int i) const {
        KvCache& kv = cache(p);
        const int position = span.first_position + i;
        const int page = span.pages[position / kPageTokens], slot = position % kPageTokens;
        const int head_dim = kv.head_dim();
        const float* k = row(p, k_, span.row + i);
        const float* v = row(p, v_, span.row + i);
        uint16_t halves[kWidestHead];
        for (int h = 0; h < kv.kv_heads(); ++h) {
            uint16_t* keys = kv.at(page, layer_, h);
            kernels(p).to_f16(k + h * head_dim, head_dim, halves);
            for (int d = 0; d < head_dim; ++d) keys[d * kPageTokens + slot] = halves[d];
            uint16_t* values = keys + head_dim * kPageTokens;
            kernels(p).to_f16(v + h * head_dim, head_dim, values + slot * head_dim);
        }
    }
    int k_, v_, layer_;
};

// What Attend and AttendMerge share: one layer's attention.
class Attention : public Instruction {
  public:
    Attention(const char* kind, const AttentionShape& shape) : Instruction(kind), shape_(shape) {}

  protected:
    AttendArgs arguments(Program& p, const AttendItem& item, int thread) const {
        const Span& span = step(p).spans[item.span];
        KvCache& kv = cache(p);
        AttendArgs args;
        args.group = shape_.heads / kv.kv_heads();
        args.head_dim = kv.head_dim();
        const int row_index = span.row + item.first_token;
        const int column = item.head * args.group * args.head_dim;
        args.q = row(p, shape_.q, row_index) + column;
        args.out = row(p, shape_.out, row_index) + column;
        args.q_stride = width(p, shape_.q);
        args.kv = kv.at(0, shape_.layer, item.head);
        args.page_stride = kv.page_stride();
        args.pages = span.pages;
        args.tokens = item.tokens;
        args.first_position = span.first_position + item.first_token;
        args.scale = shape_.scale;
        args.window = shape_.window;
        args.scratch = scratch(p, thread);
        return args;
    }
    float* part(Program& p, const AttendItem& item, int split) const {
        return parts(p) + (item.parts + split) * attend_part(cache(p).head_dim());
    }
    void quantise(Program& p, const AttendItem& item) const {
        if (!shape_.quantise) return;
        const int first = step(p).spans[item.span].row + item.first_token;
        const int columns = shape_.heads / cache(p).kv_heads() * cache(p).head_dim();
        for (int i = 0; i < item.tokens; ++i) {
            quantise_columns(p, shape_.out, first + i, item.head * columns, columns);
        }
    }

  private:
    AttentionShape shape_;
};

class Attend final : public Attention {
  public:
    explicit Attend(const AttentionShape& shape) : Attention("attend", shape) {}
    int items(const Program& p) const override {
        return static_cast<int>(attention(p).items().size());
    }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = attention(p).items()[index];
        const AttendArgs args = arguments(p, item, thread);
        if (item.split >= 0) {
            kernels(p).attend_split(args, item.split, part(p, item, item.split));
        } else {
            kernels(p).attend(args);
            quantise(p, item);
        }
    }
};

class AttendMerge final : public Attention {
  public:
    explicit AttendMerge(const AttentionShape& shape) : Attention("merge", shape) {}
    int items(const Program& p) const override {
        return static_cast<int>(attention(p).merges().size());
    }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = attention(p).merges()[index];
        kernels(p).attend_merge(arguments(p, item, thread), part(p, item, 0));
        quantise(p, item);
    }
};

}  // namespace

InstructionPointer make_store_kv(int k, int v, int layer) {
    return std::make_unique<StoreKv>(k, v, layer);
}

InstructionPointer make_attend(const AttentionShape& shape) {
    return std::make_unique<Attend>(shape);
}

InstructionPointer make_attend_merge(const AttentionShape& shape) {
    return std::make_unique<AttendMerge>(shape);
}

}  // namespace heddle
