#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace heddle {

namespace {

// Most rows of elementwise work in one item.
constexpr int kRowsPerItem = 16;
// Query tokens per attention item; bounds the imbalance between threads on long prompts.
constexpr int kAttendTokens = 16;
// Below this many attention items per thread, long contexts are split.
constexpr int kFewItems = 4;
// Items per thread that a matmul is cut into.
constexpr int kMatmulItems = 6;
// Elements of the widest attention head served.
constexpr int kWidestHead = 512;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

class Instruction {
  public:
    explicit Instruction(const char* kind) : kind(kind) {}
    virtual ~Instruction() = default;
    virtual int items(const Program& program) const = 0;
    virtual void run(Program& program, int item, int thread) = 0;
    const char* const kind;

  protected:
    static const Step& step(const Program& p) { return *p.step_; }
    static Step& step(Program& p) { return *p.step_; }
    static const Kernels& kernels(const Program& p) { return p.kernels_; }
    static KvCache& cache(Program& p) { return p.cache_; }
    static const KvCache& cache(const Program& p) { return p.cache_; }
    static int threads(const Program& p) { return p.pool_.threads(); }
    static const RopeTable& rope(const Program& p, int table) { return p.ropes_[table]; }
    static float* scratch(Program& p, int thread) { return p.scratch_[thread].data(); }
    static Program::Buffer& buffer(Program& p, int index) { return p.buffers_[index]; }
    static int width(const Program& p, int index) { return p.buffers_[index].width; }
    static float* row(Program& p, int index, int64_t i) {
        return p.buffers_[index].values.data() + i * p.buffers_[index].width;
    }
    // Rows of `buffer` that this step uses.
    static int rows(const Program& p, int index) {
        return p.buffers_[index].per_row ? static_cast<int>(p.step_->rows.size()) : p.step_->tokens;
    }
    static const std::vector<AttendItem>& attend_items(const Program& p) { return p.attend_items_; }
    static const std::vector<AttendItem>& merge_items(const Program& p) { return p.merge_items_; }
    static float* parts(Program& p) { return p.parts_.data(); }
    // Quantises columns [column, column + count) of a row, whole blocks.
    static void quantise_columns(Program& p, int index, int64_t i, int column, int count) {
        Program::Buffer& b = p.buffers_[index];
        const int64_t at = i * b.width + column, block = at / kBlock;
        p.kernels_.quantise(b.values.data() + at, count, b.q.data() + at, b.scales.data() + block);
    }
    static void quantise_row(Program& p, int index, int64_t i) {
        quantise_columns(p, index, i, 0, p.buffers_[index].width);
    }
};

namespace {

// Work that treats each row of `shape` by itself.
class RowInstruction : public Instruction {
  public:
    RowInstruction(const char* kind, int shape) : Instruction(kind), shape_(shape) {}
    int items(const Program& p) const override { return ceil_div(rows(p, shape_), per_item(p)); }
    void run(Program& p, int item, int) override {
        const int count = per_item(p), end = std::min((item + 1) * count, rows(p, shape_));
        for (int i = item * count; i < end; ++i) run_row(p, i);
    }
    virtual void run_row(Program& p, int i) = 0;

  private:
    int per_item(const Program& p) const {
        return std::min(kRowsPerItem, std::max(1, ceil_div(rows(p, shape_), threads(p))));
    }
    int shape_;
};

class Embed final : public RowInstruction {
  public:
    Embed(Format format, const uint8_t* table, int width, int out)
        : RowInstruction("embed", out),
          format_(format),
          table_(table),
          row_bytes_(heddle::row_bytes(format, width)),
          out_(out) {}
    void run_row(Program& p, int i) override {
        dequantise_row(format_, table_ + step(p).ids[i] * row_bytes_, width(p, out_),
                       row(p, out_, i));
    }

  private:
    Format format_;
    const uint8_t* table_;
    int64_t row_bytes_;
    int out_;
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
    void run_row(Program& p, int i) override {
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

class Quantise final : public RowInstruction {
  public:
    explicit Quantise(int in) : RowInstruction("quantise", in), in_(in) {}
    void run_row(Program& p, int i) override { quantise_row(p, in_, i); }

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
    void run_row(Program& p, int i) override {
        const int head_dim = width(p, in_) / heads_;
        for (int h = 0; h < heads_; ++h) {
            float* x = row(p, in_, i) + h * head_dim;
            kernels(p).norm(x, weight_.data(), head_dim, eps_, x);
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
    void run_row(Program& p, int i) override {
        kernels(p).scale(row(p, in_, i), factor_, width(p, in_), row(p, in_, i));
    }

  private:
    int in_;
    float factor_;
};

class Gated final : public RowInstruction {
  public:
    Gated(bool gelu, int gate, int up, int out, bool quantise)
        : RowInstruction("gated", out),
          gelu_(gelu),
          gate_(gate),
          up_(up),
          out_(out),
          quantise_(quantise) {}
    void run_row(Program& p, int i) override {
        const auto kernel = gelu_ ? kernels(p).gated_gelu : kernels(p).gated_silu;
        kernel(row(p, gate_, i), row(p, up_, i), width(p, out_), row(p, out_, i));
        if (quantise_) quantise_row(p, out_, i);
    }

  private:
    bool gelu_;
    int gate_, up_, out_;
    bool quantise_;
};

class Add final : public RowInstruction {
  public:
    Add(int x, int y, int out) : RowInstruction("add", out), x_(x), y_(y), out_(out) {}
    void run_row(Program& p, int i) override {
        kernels(p).add(row(p, x_, i), row(p, y_, i), width(p, out_), row(p, out_, i));
    }

  private:
    int x_, y_, out_;
};

class TakeRows final : public RowInstruction {
  public:
    TakeRows(int in, int out) : RowInstruction("take", out), in_(in), out_(out) {}
    void run_row(Program& p, int i) override {
        std::memcpy(row(p, out_, i), row(p, in_, step(p).rows[i]),
                    static_cast<size_t>(width(p, out_)) * sizeof(float));
    }

  private:
    int in_, out_;
};

class Rope final : public RowInstruction {
  public:
    Rope(int in, int table, int heads)
        : RowInstruction("rope", in), in_(in), table_(table), heads_(heads) {}
    void run_row(Program& p, int i) override {
        const RopeTable& table = rope(p, table_);
        const int pairs = table.dim / 2, head_dim = width(p, in_) / heads_;
        const int64_t at = static_cast<int64_t>(step(p).positions[i]) * pairs;
        const float* c = table.cosine.data() + at;
        const float* s = table.sine.data() + at;
        for (int h = 0; h < heads_; ++h) {
            float* x = row(p, in_, i) + h * head_dim;
            if (table.interleaved) {
                rotate<2>(x, x + 1, c, s, pairs);
            } else {
                rotate<1>(x, x + pairs, c, s, pairs);
            }
        }
    }

  private:
    template <int Stride>
    static void rotate(float* x, float* y, const float* c, const float* s, int pairs) {
        for (int i = 0; i < pairs; ++i) {
            const float a = x[i * Stride], b = y[i * Stride];
            x[i * Stride] = a * c[i] - b * s[i];
            y[i * Stride] = a * s[i] + b * c[i];
        }
    }
    int in_, table_, heads_;
};

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
    void run(Program& p, int item, int) override {
        const int64_t count = items(p);
        const int first = static_cast<int>(panels_ * int64_t{item} / count);
        const int last = static_cast<int>(panels_ * (int64_t{item} + 1) / count);
        int base = 0;
        for (const MatmulPart& part : parts_) {
            const int panels = part.matrix->panels();
            const int from = std::max(first - base, 0), to = std::min(last - base, panels);
            if (from < to) run_part(p, part, from, to);
            base += panels;
        }
    }

  private:
    void run_part(Program& p, const MatmulPart& part, int from, int to) {
        MatmulArgs args;
        args.w = &part.matrix->packed();
        args.xq = buffer(p, in_).quantised();
        args.x = row(p, in_, 0);
        args.out = row(p, part.out, 0);
        args.out_stride = width(p, part.out);
        args.accumulate = accumulate_;
        args.first_panel = from;
        args.last_panel = to;
        args.tokens = rows(p, in_);
        kernels(p).matmul(args);
    }
    int in_;
    std::vector<MatmulPart> parts_;
    bool accumulate_;
    int panels_ = 0;
};

// What Attend and AttendMerge share: one layer's attention.
class Attention : public Instruction {
  public:
    struct Shape {
        int q, layer, heads;
        float scale;
        int window, out;
        bool quantise;
    };
    Attention(const char* kind, Shape shape) : Instruction(kind), shape_(shape) {}

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
    Shape shape_;
};

class Attend final : public Attention {
  public:
    explicit Attend(Shape shape) : Attention("attend", shape) {}
    int items(const Program& p) const override { return static_cast<int>(attend_items(p).size()); }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = attend_items(p)[index];
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
    explicit AttendMerge(Shape shape) : Attention("merge", shape) {}
    int items(const Program& p) const override { return static_cast<int>(merge_items(p).size()); }
    void run(Program& p, int index, int thread) override {
        const AttendItem& item = merge_items(p)[index];
        kernels(p).attend_merge(arguments(p, item, thread), part(p, item, 0));
        quantise(p, item);
    }
};

class Sample final : public Instruction {
  public:
    explicit Sample(int logits) : Instruction("sample"), logits_(logits) {}
    int items(const Program& p) const override { return static_cast<int>(step(p).samplers.size()); }
    void run(Program& p, int item, int) override {
        Step& s = step(p);
        s.picks[item] =
            s.samplers[item]->pick(kernels(p), row(p, logits_, item), width(p, logits_));
    }

  private:
    int logits_;
};

}  // namespace

QuantisedRows Program::Buffer::quantised() { return {q.data(), scales.data(), width}; }

Program::Program(ThreadPool& pool, const Kernels& kernels, KvCache& cache, int max_tokens,
                 int max_rows)
    : pool_(pool),
      kernels_(kernels),
      cache_(cache),
      max_tokens_(max_tokens),
      max_rows_(max_rows),
      scratch_(static_cast<size_t>(pool.threads())) {
    if (max_tokens < 1 || max_rows < 1)
        throw std::invalid_argument("a step needs a token and a row");
    if (cache.head_dim() % 16 != 0 || cache.head_dim() > kWidestHead) {
        throw std::invalid_argument("head_dim must be a multiple of 16, at most " +
                                    std::to_string(kWidestHead));
    }
    for (auto& scratch : scratch_) {
        scratch.resize(static_cast<size_t>(attend_scratch(cache.head_dim())));
    }
}

Program::~Program() = default;

int Program::buffer(int width, bool per_row) {
    if (width < 1) throw std::invalid_argument("a buffer needs a width");
    Buffer b;
    b.width = width;
    b.per_row = per_row;
    b.values.resize(static_cast<size_t>(width) *
                    static_cast<size_t>(per_row ? max_rows_ : max_tokens_));
    buffers_.push_back(std::move(b));
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::rope_table(RopeTable table) {
    if (table.dim < 2 || table.dim % 2 != 0 || table.cosine.size() != table.sine.size()) {
        throw std::invalid_argument("a rope table needs an even dim and as many sines as cosines");
    }
    max_position_ =
        std::min(max_position_, static_cast<int64_t>(table.cosine.size()) / (table.dim / 2));
    ropes_.push_back(std::move(table));
    return static_cast<int>(ropes_.size()) - 1;
}

Program::Buffer& Program::at(int buffer) {
    if (buffer < 0 || buffer >= static_cast<int>(buffers_.size())) {
        throw std::invalid_argument("there is no buffer " + std::to_string(buffer));
    }
    return buffers_[static_cast<size_t>(buffer)];
}

void Program::same_shape(int a, int b) {
    if (at(a).width != at(b).width || at(a).per_row != at(b).per_row) {
        throw std::invalid_argument("buffers " + std::to_string(a) + " and " + std::to_string(b) +
                                    " differ in shape");
    }
}

void Program::want_quantised(int buffer) {
    Buffer& b = at(buffer);
    if (b.width % kBlock != 0) {
        throw std::invalid_argument("cannot quantise " + std::to_string(b.width) +
                                    " columns: not a multiple of 32");
    }
    b.q.resize(b.values.size());
    b.scales.resize(b.values.size() / kBlock);
}

void Program::append(std::unique_ptr<Instruction> instruction) {
    instructions_.push_back(std::move(instruction));
    nanoseconds_.push_back(0.0);
}

void Program::embed(Format format, const uint8_t* table, int rows, int out) {
    vocabulary_ = vocabulary_ == 0 ? rows : std::min(vocabulary_, rows);
    append(std::make_unique<Embed>(format, table, at(out).width, out));
}

void Program::norm(int in, std::vector<float> weight, float eps, int out, bool quantise) {
    same_shape(in, out);
    if (static_cast<int>(weight.size()) != at(in).width) {
        throw std::invalid_argument("the norm's weight has another width than its input");
    }
    if (quantise) want_quantised(out);
    append(std::make_unique<Norm>(in, std::move(weight), eps, out, quantise));
}

void Program::quantise(int in) {
    want_quantised(in);
    append(std::make_unique<Quantise>(in));
}

void Program::matmul(int in, std::vector<MatmulPart> parts, bool accumulate) {
    if (parts.empty()) throw std::invalid_argument("a matmul needs a matrix");
    for (const MatmulPart& part : parts) {
        const PackedMatrix& w = part.matrix->packed();
        if (w.columns != at(in).width || w.rows != at(part.out).width) {
            throw std::invalid_argument("matrix (" + std::to_string(w.rows) + ", " +
                                        std::to_string(w.columns) + ") does not fit its buffers");
        }
        if (is_quantised(w.format) && at(in).q.empty()) {
            throw std::invalid_argument("buffer " + std::to_string(in) + " is not quantised");
        }
    }
    append(std::make_unique<Matmul>(in, std::move(parts), accumulate));
}

void Program::norm_heads(int in, std::vector<float> weight, float eps, int heads) {
    if (heads < 1 || static_cast<int>(weight.size()) * heads != at(in).width) {
        throw std::invalid_argument("the norm's weight has another width than a head");
    }
    append(std::make_unique<NormHeads>(in, std::move(weight), eps, heads));
}

void Program::scale(int in, float factor) {
    at(in);
    append(std::make_unique<ScaleBy>(in, factor));
}

void Program::gated(bool gelu, int gate, int up, int out, bool quantise) {
    same_shape(gate, up);
    same_shape(gate, out);
    if (quantise) want_quantised(out);
    append(std::make_unique<Gated>(gelu, gate, up, out, quantise));
}

void Program::gated_silu(int gate, int up, int out, bool quantise) {
    gated(false, gate, up, out, quantise);
}

void Program::gated_gelu(int gate, int up, int out, bool quantise) {
    gated(true, gate, up, out, quantise);
}

void Program::rope(int in, int table, int heads) {
    if (table < 0 || table >= static_cast<int>(ropes_.size())) {
        throw std::invalid_argument("there is no rope table " + std::to_string(table));
    }
    if (heads < 1 || at(in).width % heads != 0 || at(in).width / heads < ropes_[table].dim) {
        throw std::invalid_argument("the rope table is wider than a head");
    }
    append(std::make_unique<Rope>(in, table, heads));
}

void Program::store_kv(int k, int v, int layer) {
    if (at(k).width != cache_.kv_heads() * cache_.head_dim() || at(v).width != at(k).width) {
        throw std::invalid_argument("keys or values do not fit the KV cache");
    }
    append(std::make_unique<StoreKv>(k, v, layer));
}

void Program::attend(int q, int layer, int heads, float scale, int window, int out, bool quantise) {
    if (window < 0) throw std::invalid_argument("a window has at least one position");
    same_shape(q, out);
    if (heads % cache_.kv_heads() != 0 || at(q).width != heads * cache_.head_dim()) {
        throw std::invalid_argument("queries do not fit the KV cache");
    }
    if (quantise) {
        want_quantised(out);
        if (heads / cache_.kv_heads() * cache_.head_dim() % kBlock != 0) {
            throw std::invalid_argument("a head group is not whole quantisation blocks");
        }
    }
    widest_group_ = std::max(widest_group_, heads / cache_.kv_heads());
    const Attention::Shape shape{q, layer, heads, scale, window, out, quantise};
    append(std::make_unique<Attend>(shape));
    append(std::make_unique<AttendMerge>(shape));
}

void Program::add(int x, int y, int out) {
    same_shape(x, y);
    same_shape(x, out);
    append(std::make_unique<Add>(x, y, out));
}

void Program::take_rows(int in, int out) {
    if (at(in).width != at(out).width || at(in).per_row || !at(out).per_row) {
        throw std::invalid_argument("take_rows goes from a token buffer to a row buffer");
    }
    append(std::make_unique<TakeRows>(in, out));
}

void Program::sample(int logits) {
    if (!at(logits).per_row) throw std::invalid_argument("logits must be a row buffer");
    append(std::make_unique<Sample>(logits));
}

void Program::cut_attention(const Step& step) {
    attend_items_.clear();
    merge_items_.clear();
    if (worth_splitting(step)) return split_attention(step);
    for (size_t i = 0; i < step.spans.size(); ++i) {
        for (int first = 0; first < step.spans[i].tokens; first += kAttendTokens) {
            const int tokens = std::min(kAttendTokens, step.spans[i].tokens - first);
            for (int head = 0; head < cache_.kv_heads(); ++head) {
                attend_items_.push_back({static_cast<int>(i), first, tokens, head, -1, 0});
            }
        }
    }
}

// Whether a step is so few single tokens with contexts so long that threads would stand idle.
bool Program::worth_splitting(const Step& step) const {
    const int items = static_cast<int>(step.spans.size()) * cache_.kv_heads();
    if (items >= pool_.threads() * kFewItems || widest_group_ > kAttendQueries) return false;
    bool several = false;
    for (const Span& span : step.spans) {
        if (span.tokens != 1) return false;
        several |= span.first_position >= kSplitTokens;
    }
    return several;
}

void Program::split_attention(const Step& step) {
    int parts = 0;
    for (size_t i = 0; i < step.spans.size(); ++i) {
        const int splits = step.spans[i].first_position / kSplitTokens + 1;
        for (int head = 0; head < cache_.kv_heads(); ++head, parts += splits) {
            const int span = static_cast<int>(i);
            for (int split = 0; split < splits; ++split) {
                attend_items_.push_back({span, 0, 1, head, split, parts});
            }
            merge_items_.push_back({span, 0, 1, head, -1, parts});
        }
    }
    parts_.resize(static_cast<size_t>(parts * attend_part(cache_.head_dim())));
}

// Indices come from Python as integers; one out of range would read or write foreign memory.
void Program::check(const Step& step) const {
    const auto require = [](bool good, const char* what) {
        if (!good) throw std::invalid_argument(std::string("a step has bad ") + what);
    };
    require(step.tokens >= 1 && step.tokens <= max_tokens_, "token count");
    require(static_cast<int>(step.rows.size()) <= max_rows_, "row count");
    require(step.samplers.empty() || step.samplers.size() == step.rows.size(), "sampler count");
    for (int32_t row : step.rows) require(row >= 0 && row < step.tokens, "row");
    for (int i = 0; i < step.tokens; ++i) {
        require(step.ids[i] >= 0 && step.ids[i] < vocabulary_, "token id");
        require(step.positions[i] >= 0 && step.positions[i] < max_position_, "position");
    }
    for (const Span& span : step.spans) {
        require(span.row >= 0 && span.tokens >= 1 && span.row <= step.tokens - span.tokens, "span");
        require(span.first_position >= 0, "position");
        const int last = (span.first_position + span.tokens - 1) / kPageTokens;
        for (int page = 0; page <= last; ++page) {
            require(span.pages[page] >= 0 && span.pages[page] < cache_.pages(), "page");
        }
    }
}

void Program::run(Step& step) {
    check(step);
    step_ = &step;
    step.picks.assign(step.samplers.size(), Pick{});
    cut_attention(step);
    pool_.run(*this);
    step_ = nullptr;
}

int Program::instructions() const { return static_cast<int>(instructions_.size()); }

int Program::items(int instruction) const {
    return instructions_[static_cast<size_t>(instruction)]->items(*this);
}

void Program::run(int instruction, int item, int thread) {
    Instruction& i = *instructions_[static_cast<size_t>(instruction)];
    if (!profiling_ || thread != 0) return i.run(*this, item, thread);
    const auto begin = std::chrono::steady_clock::now();
    i.run(*this, item, thread);
    nanoseconds_[static_cast<size_t>(instruction)] +=
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

const float* Program::data(int buffer) const {
    return buffers_.at(static_cast<size_t>(buffer)).values.data();
}

int Program::rows(int buffer) const {
    return buffers_.at(static_cast<size_t>(buffer)).per_row ? max_rows_ : max_tokens_;
}

int Program::width(int buffer) const { return buffers_.at(static_cast<size_t>(buffer)).width; }

std::vector<std::pair<const char*, double>> Program::take_profile() {
    std::vector<std::pair<const char*, double>> profile;
    for (size_t i = 0; i < instructions_.size(); ++i) {
        profile.emplace_back(instructions_[i]->kind, nanoseconds_[i]);
        nanoseconds_[i] = 0.0;
    }
    return profile;
}

}  // namespace heddle
