// Instructions that write to the KV cache and read it.
#include <algorithm>
#include <utility>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

class StoreKv final : public Instruction {
  public:
    StoreKv(int k, int v, int layer, int cache)
        : Instruction("store_kv"), k_(k), v_(v), layer_(layer), cache_(cache) {}
    int items(const Program& p) const override {
        return static_cast<int>(stores(p).items().size());
    }
    void run(Program& p, int index, int) override {
        const StoreItem& item = stores(p).items()[index];
        const Span& span = step(p).spans[item.span];
        const int position = span.first_position + item.first_token;
        KvCache& kv = cache(p, cache_);
        StoreKvArgs args;
        args.stride = width(p, k_);
        args.kv_type = kv.type();
        args.head_dim = kv.head_dim();
        args.position = position % kPageTokens;
        args.tokens = item.tokens;
        for (int head = 0; head < kv.kv_heads(); ++head) {
            args.k = row(p, k_, span.row + item.first_token) + head * kv.head_dim();
            args.v = row(p, v_, span.row + item.first_token) + head * kv.head_dim();
            args.part = kv.at(span.tables[cache_].at(position / kPageTokens), layer_, head);
            kernels(p).store_kv(args);
        }
    }

  private:
    int k_, v_, layer_, cache_;
};

class StoreLatents final : public Instruction {
  public:
    StoreLatents(int latent, int key, int layer, int cache)
        : Instruction("store_latents"), latent_(latent), key_(key), layer_(layer), cache_(cache) {}
    int items(const Program& p) const override {
        return static_cast<int>(stores(p).items().size());
    }
    void run(Program& p, int index, int) override {
        const StoreItem& item = stores(p).items()[index];
        const Span& span = step(p).spans[item.span];
        const int position = span.first_position + item.first_token;
        KvCache& kv = cache(p, cache_);
        StoreLatentArgs args;
        args.latent = row(p, latent_, span.row + item.first_token);
        args.key = row(p, key_, span.row + item.first_token);
        args.rank = width(p, latent_);
        args.head_dim = kv.head_dim();
        args.kv_type = kv.type();
        args.part = kv.at(span.tables[cache_].at(position / kPageTokens), layer_, 0);
        args.position = position % kPageTokens;
        args.tokens = item.tokens;
        kernels(p).store_latents(args);
    }

  private:
    int latent_, key_, layer_, cache_;
};

// One layer's attention: the common part of Attend and AttendMerge.
class Attention : public Instruction {
  public:
    Attention(const char* kind, AttentionShape shape)
        : Instruction(kind), shape_(std::move(shape)) {}

  protected:
    AttendArgs arguments(Program& p, const AttendItem& item, int thread) const {
        const Span& span = step(p).spans[item.span];
        KvCache& kv = cache(p, shape_.cache);
        AttendArgs args;
        args.group = group(p);
        args.head_dim = kv.head_dim();
        args.value_dim = value_dim(p);
        const int row_index = span.row + item.first_token, first_head = item.group * args.group;
        const int column = first_head * args.value_dim;
        args.q = row(p, shape_.q, row_index) + column;
        args.q_stride = width(p, shape_.q);
        args.turned = nullptr;
        if (shape_.turned >= 0) {
            args.turned_stride = width(p, shape_.turned);
            args.turned_head = args.turned_stride / shape_.heads;
            const int64_t before = args.turned_head - (args.head_dim - args.value_dim);
            args.turned = row(p, shape_.turned, row_index) + first_head * args.turned_head + before;
        }
        args.out = row(p, shape_.out, row_index) + column;
        args.out_stride = width(p, shape_.out);
        args.kv_type = kv.type();
        args.kv = kv.at(0, shape_.layer, kv_head(item));
        args.page_stride = kv.page_bytes();
        args.pages = span.tables[shape_.cache].pages;
        args.first_page = span.tables[shape_.cache].first;
        args.next = nullptr;
        args.tokens = item.tokens;
        args.first_position = span.first_position + item.first_token;
        args.last_position = span.first_position + span.tokens - 1;
        args.causal = shape_.causal;
        args.window = shape_.window;
        args.aligned = shape_.aligned;
        args.runs = nullptr;
        args.run_stride = 2 * step(p).run_kinds;
        if (shape_.runs > 0 && step(p).runs != nullptr) {
            args.runs = step(p).runs + int64_t{row_index} * args.run_stride + 2 * (shape_.runs - 1);
        }
        args.scale = shape_.scale;
        args.soft_cap = shape_.soft_cap;
        args.sinks = shape_.sinks.empty() ? nullptr : &shape_.sinks[first_head];
        args.bias = nullptr;
        if (shape_.bias >= 0) {
            const PositionBias& table = bias(p, shape_.bias);
            args.bias_stride = table.stride();
            args.bias = table.values.data() + first_head * args.bias_stride + table.positions - 1;
        }
        args.scratch = scratch(p, thread);
        return args;
    }
    float* part(Program& p, const AttendItem& item, int split) const {
        return parts(p) + (item.parts + split) * attend_part(group(p), value_dim(p));
    }
    // The key/value head that an item reads. All groups of heads read the same latents.
    int kv_head(const AttendItem& item) const { return shape_.turned >= 0 ? 0 : item.group; }
    void quantise(Program& p, const AttendItem& item) const {
        if (!shape_.quantise) return;
        const int first = step(p).spans[item.span].row + item.first_token;
        const int columns = group(p) * value_dim(p);
        for (int i = 0; i < item.tokens; ++i) {
            quantise_columns(p, shape_.out, first + i, item.group * columns, columns);
        }
    }

    const AttentionShape& shape() const { return shape_; }
    const AttentionPlan& plan(const Program& p) const { return attention(p, shape_.plan); }

  private:
    int group(const Program& p) const { return shape_.heads / plan(p).groups(); }
    int value_dim(const Program& p) const { return width(p, shape_.out) / shape_.heads; }

    AttentionShape shape_;
};

class Attend final : public Attention {
  public:
    explicit Attend(AttentionShape shape) : Attention("attend", std::move(shape)) {}
    int items(const Program& p) const override { return static_cast<int>(plan(p).items().size()); }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = plan(p).items()[index];
        AttendArgs args = arguments(p, item, thread);
        args.next = first_part(p, index + 1);
        if (item.split >= 0) {
            kernels(p).attend_split(args, item.split, part(p, item, item.split));
        } else {
            kernels(p).attend(args);
            quantise(p, item);
        }
    }

  private:
    // The part that an item reads first. Called for the next item, which is most likely this
    // thread's next item too.
    const uint8_t* first_part(Program& p, int index) const {
        if (index >= items(p)) return nullptr;
        const AttendItem& item = plan(p).items()[index];
        const Span& span = step(p).spans[item.span];
        const int position = span.first_position + item.first_token;
        int seen = first_seen(position, shape().window, shape().aligned);
        if (shape().runs > 0 && !shape().causal && step(p).runs != nullptr) {
            const int64_t row = span.row + item.first_token;
            seen = step(p).runs[(row * step(p).run_kinds + shape().runs - 1) * 2];
        }
        const int begin = std::max(seen, std::max(item.split, 0) * kSplitTokens);
        const int32_t page = span.tables[shape().cache].at(begin / kPageTokens);
        return cache(p, shape().cache).at(page, shape().layer, kv_head(item));
    }
};

class AttendMerge final : public Attention {
  public:
    explicit AttendMerge(AttentionShape shape) : Attention("merge", std::move(shape)) {}
    bool in_short_steps() const override { return false; }
    int items(const Program& p) const override { return static_cast<int>(plan(p).merges().size()); }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = plan(p).merges()[index];
        kernels(p).attend_merge(arguments(p, item, thread), part(p, item, 0));
        quantise(p, item);
    }
};

}  // namespace

InstructionPointer make_store_kv(int k, int v, int layer, int cache) {
    return std::make_unique<StoreKv>(k, v, layer, cache);
}

InstructionPointer make_store_latents(int latent, int key, int layer, int cache) {
    return std::make_unique<StoreLatents>(latent, key, layer, cache);
}

InstructionPointer make_attend(AttentionShape shape) {
    return std::make_unique<Attend>(std::move(shape));
}

InstructionPointer make_attend_merge(AttentionShape shape) {
    return std::make_unique<AttendMerge>(std::move(shape));
}

}  // namespace heddle
