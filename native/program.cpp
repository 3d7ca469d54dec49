#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

QuantisedRows Program::Buffer::quantised() { return {q.data(), scales.data(), stride()}; }

namespace {

// The first page that a query at `position` attends to.
int first_page(int position, int window) {
    return window > 0 ? std::max(position + 1 - window, 0) / kPageTokens : 0;
}

}  // namespace

Program::Program(ThreadPool& pool, const Kernels& kernels,
                 std::vector<std::shared_ptr<KvCache>> caches, int max_tokens, int max_rows,
                 std::shared_ptr<FixedStates> states)
    : pool_(pool),
      kernels_(kernels),
      caches_(std::move(caches)),
      states_(std::move(states)),
      windows_(caches_.size(), -1),
      max_tokens_(max_tokens),
      max_rows_(max_rows),
      scratch_(static_cast<size_t>(pool.threads())),
      candidates_(static_cast<size_t>(pool.threads())) {
    if (caches_.empty()) throw std::invalid_argument("a program needs a KV cache");
    if (max_tokens < 1 || max_rows < 1)
        throw std::invalid_argument("a step needs a token and a row");
    int widest = 1;
    for (const auto& cache : caches_) widest = std::max(widest, cache->head_dim());
    const int64_t floats =
        std::max(attend_scratch(widest), kMatmulScratch / int64_t{sizeof(float)});
    for (auto& scratch : scratch_) scratch.resize(static_cast<size_t>(floats));
}

Program::~Program() = default;

int64_t Program::next_number() {
    static std::atomic<int64_t> last{0};
    return ++last;
}

int Program::buffer(int width, bool per_row) {
    if (width < 1) throw std::invalid_argument("a buffer needs a width");
    Buffer b;
    b.width = width;
    b.per_row = per_row;
    const int rows = per_row ? max_rows_ : max_tokens_;
    b.values = MappedArray<float>(static_cast<size_t>(width) * static_cast<size_t>(rows));
    buffers_.push_back(std::move(b));
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::rope_table(int dim, bool interleaved, int64_t positions) {
    if (dim < 2 || dim % 2 != 0 || positions < 1) {
        throw std::invalid_argument("a rope table needs an even dim, and positions");
    }
    const size_t size = static_cast<size_t>(positions) * static_cast<size_t>(dim / 2);
    ropes_.push_back({dim, interleaved, MappedArray<float>(size), MappedArray<float>(size)});
    return static_cast<int>(ropes_.size()) - 1;
}

void Program::extend_rope(int table, const float* cosine, const float* sine, int pairs,
                          int positions) {
    if (step_ != nullptr) throw std::logic_error("a step reads the rope tables");
    RopeTable& to = ropes_.at(static_cast<size_t>(table));
    const int64_t first = to.positions * pairs, count = int64_t{positions} * pairs;
    if (pairs != to.dim / 2 || first + count > static_cast<int64_t>(to.cosine.size())) {
        throw std::invalid_argument("the rope table has no room for these rotations");
    }
    std::copy(cosine, cosine + count, to.cosine.data() + first);
    std::copy(sine, sine + count, to.sine.data() + first);
    to.positions += positions;
}

int Program::position_bias(int heads, int positions, const std::vector<float>& values) {
    const int64_t distances = 2 * int64_t{positions} - 1;
    if (heads < 1 || positions < 1 || static_cast<int64_t>(values.size()) != heads * distances) {
        throw std::invalid_argument("a bias has a value for each head and distance");
    }
    PositionBias bias = {heads, positions, {}};
    bias.values.resize(static_cast<size_t>(heads * bias.stride()));
    for (int head = 0; head < heads; ++head) {
        const auto first = values.begin() + head * distances;
        std::copy(first, first + distances, bias.values.begin() + head * bias.stride());
    }
    max_position_ = std::min(max_position_, static_cast<int64_t>(positions));
    biases_.push_back(std::move(bias));
    return static_cast<int>(biases_.size()) - 1;
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

// A buffer of rows has no positions and no sequences.
void Program::check_per_token(int buffer) {
    if (at(buffer).per_row) {
        throw std::invalid_argument("buffer " + std::to_string(buffer) + " is not one of tokens");
    }
}

void Program::check_layer(int layer, int cache) const {
    if (cache < 0 || cache >= caches()) {
        throw std::invalid_argument("there is no KV cache " + std::to_string(cache));
    }
    if (layer < 0 || layer >= caches_[cache]->layers()) {
        throw std::invalid_argument("the KV cache has no layer " + std::to_string(layer));
    }
}

int Program::plan_for(int groups) {
    const auto same = [&](const auto& plan) { return plan.groups() == groups; };
    const auto found = std::find_if(plans_.begin(), plans_.end(), same);
    const int index = static_cast<int>(found - plans_.begin());
    if (found == plans_.end()) plans_.emplace_back(groups, pool_.threads());
    return index;
}

void Program::want_quantised(int buffer) {
    Buffer& b = at(buffer);
    if (b.width % kBlock != 0) {
        throw std::invalid_argument("cannot quantise " + std::to_string(b.width) +
                                    " columns: not a multiple of 32");
    }
    const size_t rows = b.values.size() / static_cast<size_t>(b.width);
    if (b.q.size() != 0) return;
    b.q = MappedArray<int8_t>(rows * static_cast<size_t>(b.stride()));
    b.scales = MappedArray<BlockScale>(b.q.size() / kBlock);
}

void Program::append(std::unique_ptr<Instruction> instruction) {
    append_adapters();
    append_alone(std::move(instruction));
}

void Program::append_adapters() {
    for (auto& instruction : waiting_) append_alone(std::move(instruction));
    waiting_.clear();
}

void Program::append_alone(std::unique_ptr<Instruction> instruction) {
    const bool starts = stages() == std::max(rows_begin_, logits_begin_) ||
                        !instruction->follows(*this, *instructions_.back());
    if (starts) stages_.push_back(static_cast<int>(instructions_.size()));
    instructions_.push_back(std::move(instruction));
    nanoseconds_.push_back(0.0);
}

void Program::check_table(const PackedMatrix& table, int out) {
    check_per_token(out);
    if (table.columns != at(out).width) {
        throw std::invalid_argument("the table has another width than its output");
    }
}

void Program::embed(std::shared_ptr<const Matrix> table, int out, Lookups by, int first) {
    const PackedMatrix& m = table->packed();
    check_table(m, out);
    if (first < 0 || first >= m.rows) throw std::invalid_argument("the table has not so many rows");
    const int rows = m.rows - first;
    if (by == Lookups::kPositions) {
        max_position_ = std::min(max_position_, static_cast<int64_t>(rows));
    } else {
        vocabulary_ = std::max(vocabulary_, rows);
    }
    const Matrix* const read = table.get();
    append(make_embed(std::move(table), out, by, first));
    if (by == Lookups::kPositions || first != 0) return;
    const auto [site, is_new] = table_sites_.insert({read, {site_count_, true, false}});
    site_count_ += is_new;
    append(make_embed_changes(site->second.number, out));
}

void Program::embed_segments(std::shared_ptr<const Matrix> table, int separator, int out) {
    check_table(table->packed(), out);
    causal_ = false;
    append(make_embed_segments(std::move(table), separator, out));
}

void Program::embed_previous(std::shared_ptr<const Matrix> table, int start, int out) {
    check_table(table->packed(), out);
    if (start < 0 || start >= table->packed().rows) {
        throw std::invalid_argument("the table has not so many rows");
    }
    causal_ = false;
    append(make_embed_previous(std::move(table), start, out));
}

void Program::mean_rows(int in, int out) {
    check_per_token(in);
    same_shape(in, out);
    causal_ = false;
    append(make_mean_rows(in, out));
}

void Program::norm(int in, std::vector<float> weight, float eps, int out, bool quantise) {
    same_shape(in, out);
    if (static_cast<int>(weight.size()) != at(in).width) {
        throw std::invalid_argument("the norm's weight has another width than its input");
    }
    if (quantise) want_quantised(out);
    append(make_norm(in, std::move(weight), eps, out, quantise));
}

void Program::layer_norm(int in, std::vector<float> weight, std::vector<float> bias, float eps,
                         int out, bool quantise) {
    same_shape(in, out);
    const int width = at(in).width;
    if (static_cast<int>(weight.size()) != width || static_cast<int>(bias.size()) != width) {
        throw std::invalid_argument("the norm's weight or bias has another width than its input");
    }
    if (quantise) want_quantised(out);
    append(make_layer_norm(in, std::move(weight), std::move(bias), eps, out, quantise));
}

void Program::quantise(int in) {
    want_quantised(in);
    append(make_quantise(in));
}

void Program::matmul(int in, std::vector<MatmulPart> parts, bool accumulate) {
    if (parts.empty()) throw std::invalid_argument("a matmul needs a matrix");
    for (const MatmulPart& part : parts) {
        const PackedMatrix& w = part.matrix->packed();
        if (w.columns != at(in).width || w.rows != at(part.out).width ||
            at(in).per_row != at(part.out).per_row) {
            throw std::invalid_argument("matrix (" + std::to_string(w.rows) + ", " +
                                        std::to_string(w.columns) + ") does not fit its buffers");
        }
        if (is_quantised(w.format) && at(in).q.size() == 0) {
            throw std::invalid_argument("buffer " + std::to_string(in) + " is not quantised");
        }
    }
    std::vector<AdaptedPart> changed;
    for (const MatmulPart& part : parts) {
        const int site = add_site(part.matrix.get(), !accumulate);
        changed.push_back({site, part.matrix, part.out});
    }
    adapters_.allow(static_cast<int>(parts.size()));
    append_matmul(in, std::move(parts), accumulate);
    waiting_ = make_adapters(in, std::move(changed));
}

// A matrix that several instructions read has one number.
int Program::add_site(const Matrix* matrix, bool is_whole) {
    const auto [found, is_new] = sites_.insert({matrix, {site_count_, is_whole, true}});
    site_count_ += is_new;
    found->second.is_whole &= is_whole;
    return found->second.number;
}

std::shared_ptr<Adapter> Program::adapter(std::vector<SiteChange> changes) const {
    std::vector<LowRank> by_site(static_cast<size_t>(site_count_));
    for (SiteChange& one : changes) {
        const auto& sites = one.is_lookup ? table_sites_ : sites_;
        const auto found = sites.find(one.matrix.get());
        if (found == sites.end()) {
            throw std::invalid_argument("no instruction reads the changed matrix so");
        }
        check_change(one, found->second);
        by_site[static_cast<size_t>(found->second.number)] = std::move(one.change);
    }
    return std::make_shared<Adapter>(number_, std::move(by_site));
}

void Program::check_change(const SiteChange& of, const Site& site) const {
    const LowRank& change = of.change;
    const PackedMatrix &w = of.matrix->packed(), &a = change.a->packed();
    const bool is_whole = change.b == nullptr, has_gains = !change.gains.empty();
    if (is_quantised(a.format) || (!is_whole && is_quantised(change.b->packed().format))) {
        throw std::invalid_argument("matrices of adapters are floats");
    }
    bool fits = !has_gains || change.gains.size() == static_cast<size_t>(w.rows);
    if (is_whole) {
        fits &= a.rows == w.rows && a.columns == w.columns;
    } else {
        const PackedMatrix& b = change.b->packed();
        const int inner = of.is_lookup ? a.columns : a.rows;
        const int rows = of.is_lookup ? a.rows : b.rows;
        const int columns = of.is_lookup ? b.rows : a.columns;
        fits &= b.columns == inner && rows == w.rows && columns == w.columns &&
                change.scales.size() == static_cast<size_t>(inner);
    }
    if (!fits) throw std::invalid_argument("a low-rank change does not fit its matrix");
    if ((is_whole && (has_gains || !site.is_whole)) || (has_gains && !site.has_gains)) {
        throw std::invalid_argument("the matrix takes no change of this kind");
    }
}

// A matmul of quantised matrices, after the instruction that packs its input, or of floats.
void Program::append_matmul(int in, std::vector<MatmulPart> parts, bool accumulate) {
    const bool quantised = std::any_of(parts.begin(), parts.end(), [](const MatmulPart& part) {
        return is_quantised(part.matrix->packed().format);
    });
    if (quantised && kernels_.packs_from > 0) {
        Buffer& b = at(in);
        const auto rows = static_cast<int64_t>(b.values.size()) / b.width;
        const auto bytes = static_cast<size_t>(packed_bytes(rows, b.width / kBlock));
        if (b.packed.size() == 0) b.packed = MappedArray<uint8_t>(bytes);
        append(make_pack(in));
    }
    append(make_matmul(in, std::move(parts), accumulate));
}

void Program::head_matmul(int in, std::vector<std::shared_ptr<const Matrix>> matrices, int out) {
    const int heads = static_cast<int>(matrices.size());
    if (heads == 0 || at(in).width % heads != 0 || at(out).width % heads != 0 ||
        at(in).per_row != at(out).per_row) {
        throw std::invalid_argument("the matrices of heads do not fit their buffers");
    }
    const int in_head = at(in).width / heads, out_head = at(out).width / heads;
    std::vector<MatmulPart> parts;
    for (auto& matrix : matrices) {
        const PackedMatrix& w = matrix->packed();
        if (w.columns > in_head || w.rows != out_head) {
            throw std::invalid_argument("the matrix of a head has another shape than the head");
        }
        if (is_quantised(w.format) && (at(in).q.size() == 0 || in_head % kBlock != 0)) {
            throw std::invalid_argument("a head is not whole quantised blocks");
        }
        const int head = static_cast<int>(parts.size());
        parts.push_back({std::move(matrix), out, head * in_head, head * out_head});
    }
    append_matmul(in, std::move(parts), false);
}

void Program::norm_heads(int in, std::vector<float> weight, float eps, int heads) {
    const int count = static_cast<int>(weight.size());
    if (heads < 1 || (count * heads != at(in).width && count != at(in).width)) {
        throw std::invalid_argument("the norm's weight has another width than a head");
    }
    append(make_norm_heads(in, std::move(weight), eps, heads));
}

void Program::scale(int in, float factor) {
    at(in);
    append(make_scale(in, factor));
}

void Program::soft_cap(int in, float cap) {
    at(in);
    if (!(cap > 0)) throw std::invalid_argument("a soft cap is positive");
    append(make_soft_cap(in, cap));
}

void Program::gated(Activation activation, int gate, int up, int out, bool quantise) {
    same_shape(gate, up);
    same_shape(gate, out);
    if (quantise) want_quantised(out);
    Instruction* before = instructions_.empty() ? nullptr : instructions_.back().get();
    auto columns = make_gate_columns(*this, before, activation, gate, up, out, quantise);
    const int above = columns ? kGateColumnsRows : 0;
    if (columns) append_alone(std::move(columns));
    append(make_gated(activation, gate, up, out, quantise, above));
}

void Program::experts(std::shared_ptr<const ExpertLayer> layer, int in, int logits, int out) {
    layer->check();
    for (int buffer : {in, logits, out}) check_per_token(buffer);
    same_shape(in, out);
    if (at(in).width != layer->width() || at(logits).width != layer->routing.experts) {
        throw std::invalid_argument("the experts do not fit their buffers");
    }
    if (layer->quantised_in() && at(in).q.size() == 0) {
        throw std::invalid_argument("buffer " + std::to_string(in) + " is not quantised");
    }
    expert_rows_.reserve(*layer, max_tokens_, pool_.threads(), kernels_.packs_from > 0);
    const auto number = [this](const std::vector<std::shared_ptr<const Matrix>>& stack) {
        const int first = site_count_;
        for (const auto& matrix : stack) {
            sites_.insert({matrix.get(), {site_count_++, false, false}});
        }
        return first;
    };
    const int gate = number(layer->gate), up = number(layer->up), down = number(layer->down);
    const ExpertSites sites = {gate, up, down, site_count_};
    for (auto& made : make_experts(std::move(layer), sites, in, logits, out)) {
        append(std::move(made));
    }
}

void Program::rope(int in, int table, int heads, int first, std::vector<int> axes) {
    if (table < 0 || table >= static_cast<int>(ropes_.size())) {
        throw std::invalid_argument("there is no rope table " + std::to_string(table));
    }
    if (heads < 1 || at(in).width % heads != 0 || first < 0 ||
        at(in).width / heads < first + ropes_[table].dim) {
        throw std::invalid_argument("the rope table is wider than a head");
    }
    if (!axes.empty()) {
        const auto [least, most] = std::minmax_element(axes.begin(), axes.end());
        if (static_cast<int>(axes.size()) != ropes_[table].dim / 2 || *least < 0 ||
            axes.size() > kMostAxisPairs) {
            throw std::invalid_argument("a rotation by places needs an axis for each pair");
        }
        axes_ = std::max(axes_, *most + 1);
    }
    check_per_token(in);
    append(make_rope(in, table, heads, first, std::move(axes)));
}

void Program::see(int in, int first, bool adds) {
    check_per_token(in);
    if (first < 0) throw std::invalid_argument("columns of a picture begin at 0");
    seen_width_ = std::max(seen_width_, first + at(in).width);
    append(make_see(in, first, adds));
}

void Program::take_columns(int in, int first, int heads, int out) {
    if (heads < 1 || at(in).width % heads != 0 || at(out).width % heads != 0 ||
        at(in).per_row != at(out).per_row || first < 0 ||
        (first > 0 && first > (at(in).width - at(out).width) / heads)) {
        throw std::invalid_argument("the input has not the columns of the output");
    }
    append(make_take_columns(in, first, heads, out));
}

void Program::activate(Map map, int in, bool quantise) {
    at(in);
    if (quantise) want_quantised(in);
    append(make_activate(map, in, quantise));
}

void Program::step_size(int in, std::vector<float> bias, float least, float most) {
    if (static_cast<int>(bias.size()) != at(in).width) {
        throw std::invalid_argument("the bias has another width than its input");
    }
    append(make_step_size(in, std::move(bias), least, most));
}

void Program::decay(int in, std::vector<float> rates, int out) {
    same_shape(in, out);
    if (rates.empty() || at(in).width % static_cast<int>(rates.size()) != 0) {
        throw std::invalid_argument("rates of decay do not divide the columns");
    }
    append(make_decay(in, std::move(rates), out));
}

// Recurrent instructions write to [place, place + count) of a state.
void Program::check_place(int64_t place, int64_t count) const {
    if (states_ == nullptr || place < 0 || place % 16 != 0 || count < 0 ||
        place + count > states_->bytes() / static_cast<int64_t>(sizeof(float))) {
        throw std::invalid_argument("a part of a state is outside of it");
    }
}

void Program::conv(Convolution shape) {
    check_per_token(shape.in);
    same_shape(shape.in, shape.out);
    const int64_t width = at(shape.in).width;
    check_place(shape.place, (shape.taps - 1) * width);
    const bool biased = !shape.bias.empty();
    if (shape.taps < 2 || shape.in == shape.out ||
        static_cast<int64_t>(shape.filters.size()) != shape.taps * width ||
        (biased && static_cast<int64_t>(shape.bias.size()) != width)) {
        throw std::invalid_argument("filters do not fit their input");
    }
    append(make_conv(std::move(shape)));
}

void Program::linear_attend(LinearAttention shape) {
    for (int buffer : {shape.q, shape.k, shape.v, shape.decay, shape.strength}) {
        check_per_token(buffer);
    }
    same_shape(shape.q, shape.k);
    same_shape(shape.v, shape.out);
    const int64_t heads = shape.heads, keys = shape.key_dim;
    constexpr int64_t kWidestKey = 1024;  // its scratch is smaller than that of attention
    static_assert(3 * kWidestKey <= attend_scratch(1));
    if (heads < 1 || shape.key_heads < 1 || heads % shape.key_heads != 0 || keys < 2 ||
        keys % 2 != 0 || keys > kWidestKey || shape.value_dim < 1 || shape.v == shape.out ||
        at(shape.q).width != shape.key_heads * keys ||
        at(shape.v).width != heads * shape.value_dim || at(shape.strength).width != heads ||
        (at(shape.decay).width != heads && at(shape.decay).width != heads * keys) ||
        (!shape.skip.empty() && static_cast<int64_t>(shape.skip.size()) != heads)) {
        throw std::invalid_argument("linear attention does not fit its buffers");
    }
    check_place(shape.place, heads * keys * shape.value_dim);
    append(make_linear_attend(std::move(shape)));
}

void Program::selective_scan(Scan shape) {
    for (int buffer : {shape.q, shape.k, shape.v, shape.step}) check_per_token(buffer);
    same_shape(shape.q, shape.k);
    same_shape(shape.v, shape.step);
    same_shape(shape.v, shape.out);
    const int64_t states = at(shape.k).width, channels = at(shape.v).width;
    if (shape.v == shape.out || shape.step == shape.out ||
        static_cast<int64_t>(shape.rates.size()) != states * channels ||
        static_cast<int64_t>(shape.skip.size()) != channels) {
        throw std::invalid_argument("rates of a selective scan do not fit its buffers");
    }
    check_place(shape.place, states * channels);
    append(make_selective_scan(std::move(shape), static_cast<int>(channels)));
}

void Program::compress(Compression shape) {
    check_per_token(shape.x);
    same_shape(shape.x, shape.gate);
    const int64_t width = at(shape.x).width, parts = shape.overlaps ? 2 : 1;
    if (shape.ratio < 1 || at(shape.out).per_row || at(shape.out).width % 16 != 0 ||
        width != parts * at(shape.out).width ||
        static_cast<int64_t>(shape.bias.size()) != shape.ratio * width) {
        throw std::invalid_argument("compression does not fit its buffers");
    }
    check_place(shape.place, shape.ratio * parts * 2 * width);
    append(make_compress(std::move(shape)));
}

void Program::attend_compressed(CompressedAttention shape) {
    check_per_token(shape.q);
    check_layer(shape.layer, shape.cache);
    same_shape(shape.q, shape.out);
    const KvCache& kv = *caches_[shape.cache];
    if (shape.heads < 1 || shape.window < 1 || shape.ratio < 1 || shape.q == shape.out ||
        kv.has_values() || kv.kv_heads() != 1 || kv.head_dim() % 32 != 0 ||
        at(shape.q).width != shape.heads * kv.head_dim() / 2 ||
        (!shape.sinks.empty() && static_cast<int>(shape.sinks.size()) != shape.heads)) {
        throw std::invalid_argument("compressed attention does not fit its buffers");
    }
    windows_[shape.cache] = 0;
    append(make_attend_compressed(std::move(shape)));
}

void Program::stream_weights(StreamMixing shape) {
    const int n = shape.streams, width = at(shape.in).width;
    const bool whole = shape.scales.size() == 3;
    same_shape(shape.in, shape.out);
    if (n < 1 || n > 64 || width != (whole ? n * (n + 2) : n) || shape.scales.empty() ||
        static_cast<int>(shape.base.size()) != width || shape.turns < 1) {
        throw std::invalid_argument("the weights of streams do not fit their buffers");
    }
    append(make_stream_weights(std::move(shape)));
}

void Program::collapse(int streams, int weights, int out) {
    const int n = at(streams).width / at(out).width;
    if (at(streams).width % at(out).width != 0 || at(weights).width < n ||
        at(streams).per_row != at(out).per_row || at(weights).per_row != at(out).per_row) {
        throw std::invalid_argument("the streams do not fit their weights");
    }
    append(make_collapse(streams, weights, out));
}

void Program::expand(int streams, int result, int weights, int out) {
    const int n = at(streams).width / at(result).width;
    same_shape(streams, out);
    if (streams == out || at(streams).width % at(result).width != 0 ||
        at(weights).width != n * (n + 2) || at(result).per_row != at(out).per_row ||
        at(weights).per_row != at(out).per_row) {
        throw std::invalid_argument("the streams do not fit their weights");
    }
    append(make_expand(streams, result, weights, out));
}

void Program::keep_listed(int in, std::vector<int32_t> table, int listed, int out) {
    check_per_token(in);
    same_shape(in, out);
    const int columns = at(in).width, count = static_cast<int>(table.size());
    const auto known = [&](int32_t column) { return column >= 0 && column < columns; };
    if (in == out || listed < 1 || count < listed || count % listed != 0 ||
        !std::all_of(table.begin(), table.end(), known)) {
        throw std::invalid_argument("a table lists columns that there are not");
    }
    const int rows = count / listed;
    vocabulary_ = vocabulary_ == 0 ? rows : std::min(vocabulary_, rows);
    append(make_keep_listed(in, std::move(table), listed, out));
}

void Program::token_shift(Shift shape) {
    check_per_token(shape.in);
    check_per_token(shape.out);
    const int64_t width = at(shape.in).width, wide = at(shape.out).width;
    check_place(shape.place, width);
    if (shape.in == shape.out || wide % width != 0 ||
        static_cast<int64_t>(shape.shares.size()) != wide) {
        throw std::invalid_argument("shares of the row before do not fit their buffers");
    }
    append(make_token_shift(std::move(shape)));
}

void Program::rwkv_attend(RwkvAttention shape) {
    for (int buffer : {shape.r, shape.k, shape.v, shape.decay, shape.rate}) {
        check_per_token(buffer);
        same_shape(buffer, shape.out);
    }
    const int64_t width = at(shape.out).width, heads = shape.heads;
    constexpr int64_t kWidestHead = 1024;  // its scratch is smaller than that of attention
    static_assert(4 * kWidestHead <= attend_scratch(1));
    bool fits = heads > 0 && width % (heads * 16) == 0 && width / heads <= kWidestHead;
    for (int buffer : {shape.r, shape.k, shape.v, shape.decay, shape.rate}) {
        fits = fits && buffer != shape.out;
    }
    for (const std::vector<float>* vector :
         {&shape.removal, &shape.replacement, &shape.bonus, &shape.norm, &shape.norm_bias}) {
        fits = fits && static_cast<int64_t>(vector->size()) == width;
    }
    if (!fits) throw std::invalid_argument("RWKV's recurrence does not fit its buffers");
    check_place(shape.place, width * (width / heads));
    append(make_rwkv_attend(std::move(shape)));
}

void Program::join(int x, int y, int out) {
    const bool rows = at(out).per_row;
    if (at(x).per_row != rows || at(y).per_row != rows ||
        at(x).width + at(y).width != at(out).width) {
        throw std::invalid_argument("the output has not the columns of both inputs");
    }
    append(make_join(x, y, out));
}

void Program::store_kv(int k, int v, int layer, int cache) {
    check_layer(layer, cache);
    const KvCache& kv = *caches_[cache];
    if (!kv.has_values() || at(k).width != kv.kv_heads() * kv.head_dim() ||
        at(v).width != at(k).width) {
        throw std::invalid_argument("keys or values do not fit the KV cache");
    }
    check_per_token(k);
    check_per_token(v);
    append(make_store_kv(k, v, layer, cache));
}

void Program::store_latents(int latent, int key, int layer, int cache) {
    check_layer(layer, cache);
    const KvCache& kv = *caches_[cache];
    if (kv.has_values() || kv.kv_heads() != 1 || at(latent).width % 16 != 0 ||
        at(latent).width + at(key).width != kv.head_dim()) {
        throw std::invalid_argument("latents do not fit the KV cache");
    }
    check_per_token(latent);
    check_per_token(key);
    append(make_store_latents(latent, key, layer, cache));
}

void Program::check_latent_queries(const AttentionShape& shape) const {
    const KvCache& kv = *caches_[shape.cache];
    const int queries = buffers_[shape.q].width, rest = buffers_[shape.turned].width;
    const int rank = queries / shape.heads, turned = kv.head_dim() - rank;
    if (kv.has_values() || queries % shape.heads != 0 || rest % shape.heads != 0 ||
        rank % 16 != 0 || turned < 1 || turned > rest / shape.heads) {
        throw std::invalid_argument("queries do not fit the KV cache of latents");
    }
}

void Program::attend(AttentionShape shape) {
    check_per_token(shape.q);
    check_layer(shape.layer, shape.cache);
    const KvCache& kv = *caches_[shape.cache];
    if (shape.window < 0) throw std::invalid_argument("a window has at least one position");
    if (shape.aligned && (shape.window == 0 || !shape.causal)) {
        throw std::invalid_argument("only causal attention to a window can be aligned");
    }
    if (shape.soft_cap < 0) throw std::invalid_argument("a soft cap is positive, or 0 for none");
    if (shape.runs < 0 || (shape.runs > 0 && (shape.aligned || shape.turned >= 0))) {
        throw std::invalid_argument("attention to runs is over keys and values, and not aligned");
    }
    run_kinds_ = std::max(run_kinds_, shape.runs);
    same_shape(shape.q, shape.out);
    if (shape.heads < 1) throw std::invalid_argument("attention has at least one head");
    int group = shape.heads / kv.kv_heads();
    if (shape.turned >= 0) {
        check_per_token(shape.turned);
        check_latent_queries(shape);
        group = latent_group(shape.heads);
    } else if (!kv.has_values() || shape.heads % kv.kv_heads() != 0 ||
               at(shape.q).width != shape.heads * kv.head_dim()) {
        throw std::invalid_argument("queries do not fit the KV cache");
    }
    if (!shape.sinks.empty() && static_cast<int>(shape.sinks.size()) != shape.heads) {
        throw std::invalid_argument("there is not a sink for each head");
    }
    if (shape.bias >= 0 && (shape.bias >= static_cast<int>(biases_.size()) ||
                            biases_[shape.bias].heads != shape.heads)) {
        throw std::invalid_argument("there is no such bias for each head");
    }
    const int value_dim = at(shape.q).width / shape.heads;
    if (shape.quantise) {
        want_quantised(shape.out);
        if (group * value_dim % kBlock != 0) {
            throw std::invalid_argument("a head group is not whole quantisation blocks");
        }
    }
    shape.plan = plan_for(shape.heads / group);
    plans_[shape.plan].admit(group, value_dim);
    causal_ = causal_ && shape.causal;
    int& widest = windows_[shape.cache];
    widest = widest == 0 || shape.window == 0 ? 0 : std::max(widest, shape.window);
    append(make_attend(shape));
    append(make_attend_merge(std::move(shape)));
}

void Program::gate_rows(int x, int gate, int out, Activation activation) {
    same_shape(x, out);
    if (at(x).width % at(gate).width != 0 || at(gate).per_row != at(x).per_row) {
        throw std::invalid_argument("the gates of a row do not divide its columns");
    }
    if (activation != Activation::kSigmoid && activation != Activation::kIdentity) {
        throw std::invalid_argument("gates of rows have no such activation");
    }
    append(make_gate_rows(activation, x, gate, out));
}

void Program::mix_heads(int x, int factors, int heads, int out) {
    if (at(factors).per_row != at(x).per_row || at(out).per_row != at(x).per_row) {
        throw std::invalid_argument("the rows of mixed heads are not those of their factors");
    }
    if (heads < 1 || at(x).width % heads != 0 || at(factors).width % heads != 0 ||
        at(out).width != at(x).width / heads * (at(factors).width / heads)) {
        throw std::invalid_argument("mixed heads have not the width of their buffers");
    }
    append(make_mix_heads(x, factors, heads, out));
}

void Program::add(int x, int y, int out) {
    same_shape(x, y);
    same_shape(x, out);
    append(make_add(x, y, out));
}

void Program::take_rows(int in, int out) {
    check_per_token(in);
    if (at(out).width % at(in).width != 0 || !at(out).per_row) {
        throw std::invalid_argument("take_rows goes from a token buffer to a row buffer");
    }
    fold_ = at(out).width / at(in).width;
    if (rows_begin_ > 0) throw std::invalid_argument("rows are taken once");
    append_adapters();
    rows_begin_ = stages();
    append(make_take_rows(in, out));
}

void Program::pool(int states) {
    if (!at(states).per_row) throw std::invalid_argument("pooled states must be a row buffer");
    pooled_width_ = at(states).width;
    append(make_pool(states));
    logits_begin_ = stages();
}

void Program::sample(int logits) {
    if (!at(logits).per_row) throw std::invalid_argument("logits must be a row buffer");
    logits_width_ = at(logits).width;
    append(make_sample(logits));
    append(make_score(logits));
}

// Indices come from Python. An index out of range would read or write other memory.
void Program::check(const Step& step) const {
    const auto require = [](bool good, const char* what) {
        if (!good) throw std::invalid_argument(std::string("a step has bad ") + what);
    };
    require(step.tokens >= 1 && step.tokens <= max_tokens_, "token count");
    require(static_cast<int>(step.rows.size()) <= max_rows_, "row count");
    check_draws(step);
    int64_t positions = max_position_;
    for (const RopeTable& table : ropes_) positions = std::min(positions, table.positions);
    for (int i = 0; i < step.tokens; ++i) {
        // Without a table of embeddings, nothing reads ids.
        require(step.ids[i] >= 0 && (vocabulary_ == 0 || step.ids[i] < vocabulary_), "token id");
        require(step.positions[i] >= 0 && step.positions[i] < positions, "position");
    }
    for (const Span& span : step.spans) {
        require(span.row >= 0 && span.tokens >= 1 && span.row <= step.tokens - span.tokens, "span");
        require(span.first_position >= 0, "position");
        require(causal_ || span.first_position == 0, "span, not of a whole sequence");
        check_tables(span);
        const auto known = [&](int state) { return state >= 0 && state < states_->count(); };
        require(!states_ || (known(span.state) && known(span.kept_state)), "state");
        const int most = span.state == span.kept_state ? span.tokens : span.tokens - 1;
        require(!states_ || (span.certain >= 0 && span.certain <= most),
                "number of certain tokens");
    }
    for (const Adapted& change : step.adapted) {
        require(change.row >= 0 && change.tokens >= 1 && change.row <= step.tokens - change.tokens,
                "rows of an adapter");
        require(change.adapter->program() == number_, "adapter, which is of another program");
    }
}

// The draws of a step divide its rows. The rows of a draw are consecutive tokens.
void Program::check_draws(const Step& step) const {
    size_t rows = 0;
    for (const Draw& draw : step.draws) {
        bool good = draw.count >= 1 && static_cast<size_t>(draw.count) <= step.rows.size() - rows;
        for (int i = 1; good && i < draw.count; ++i) {
            good = step.rows[rows + i] == step.rows[rows + i - 1] + 1;
        }
        if (!good) throw std::invalid_argument("a step has bad rows of a sampler");
        rows += draw.count;
    }
    if (!step.draws.empty() && rows != step.rows.size()) {
        throw std::invalid_argument("a step has bad sampler count");
    }
}

// A query reads only the pages of its window.
void Program::check_tables(const Span& span) const {
    for (int cache = 0; cache < caches(); ++cache) {
        const PageTable& table = span.tables[cache];
        const int window = std::max(windows_[cache], 0);
        bool good = table.first >= 0 && table.first <= first_page(span.first_position, window);
        for (int page = table.first; good && page <= span.last_page(); ++page) {
            good = table.at(page) >= 0 && table.at(page) < caches_[cache]->pages();
        }
        if (!good) throw std::invalid_argument("a step has bad page");
    }
}

// What rotations, attention and embeddings read of pictures.
void Program::check_sight(const Step& step) const {
    const auto require = [](bool good, const char* what) {
        if (!good) throw std::invalid_argument(std::string("a step has bad ") + what);
    };
    require(step.first_stage >= 0 && step.first_stage <= rows_begin_ &&
                step.last_stage <= rows_begin_ &&
                (step.last_stage < 0 || step.last_stage >= step.first_stage),
            "stages");
    require(step.part >= 0 && step.part < step.parts, "part");
    require(step.parts == 1 || step.last_stage >= 0, "part: rows are computed as a whole");
    require(step.axes >= axes_, "places: rotations have more axes");
    int64_t known = INT32_MAX;
    for (const RopeTable& table : ropes_) known = std::min(known, table.positions);
    for (int64_t i = 0; i < int64_t{step.tokens} * step.axes; ++i) {
        require(step.places[i] >= 0 && step.places[i] < known, "place");
    }
    for (const SeenRows& seen : step.seen) {
        require(seen.row >= 0 && seen.tokens >= 1 && seen.row <= step.tokens - seen.tokens &&
                    seen.width >= seen_width_,
                "rows of a picture");
    }
    if (step.runs == nullptr) return;
    require(step.run_kinds >= run_kinds_, "runs: attention sees more kinds");
    for (const Span& span : step.spans) check_runs(step, span);
}

// A run holds its token, ends within the span, and lies behind the run of the token before.
void Program::check_runs(const Step& step, const Span& span) const {
    for (int kind = 0; kind < step.run_kinds; ++kind) {
        int begin = 0, end = 0;
        for (int i = 0; i < span.tokens; ++i) {
            const int32_t* run = step.runs + (int64_t{span.row + i} * step.run_kinds + kind) * 2;
            const int position = span.first_position + i;
            if (run[0] < begin || run[1] < end || run[0] > position || run[1] <= position ||
                run[1] > span.first_position + span.tokens) {
                throw std::invalid_argument("a step has a bad run");
            }
            begin = run[0];
            end = run[1];
        }
    }
}

void Program::check_readout(const Step& step) const {
    const auto require = [](bool good, const char* what) {
        if (!good) throw std::invalid_argument(std::string("a step has bad ") + what);
    };
    const auto in_step = [&](int row) { return row >= 0 && row <= step.tokens - fold_; };
    for (int32_t row : step.rows) require(in_step(row), "row");
    for (const ScoredRow& scored : step.scored) {
        require(in_step(scored.row), "row");
        require(scored.target >= 0 && scored.target < logits_width_, "target");
        require(scored.top >= 0, "number of alternatives");
    }
    require(step.pooled.empty() || pooled_width_ > 0, "pooled row");
    for (const PooledRow& pooled : step.pooled) require(in_step(pooled.row), "pooled row");
}

void Program::begin_pass(int first_stage, int last_stage, int first_row, int row_count) {
    first_stage_ = first_stage;
    last_stage_ = last_stage;
    first_row_ = first_row;
    row_count_ = row_count;
    adapters_.cut_wanted(step_->adapted, wanted_.data() + first_row, row_count);
    pool_.begin(*this);
}

void Program::run_pass(int first_stage, int last_stage, int first_row, int row_count) {
    begin_pass(first_stage, last_stage, first_row, row_count);
    pool_.finish();
}

void Program::begin(Step& step) {
    if (step_ != nullptr) throw std::logic_error("another step has not been finished");
    append_adapters();  // of the last instruction, if that is a matmul
    begun_ = Clock::now();
    check(step);
    check_sight(step);
    check_readout(step);
    for (const Span& span : step.spans) {
        for (int cache = 0; cache < caches(); ++cache) {
            caches_[cache]->reached(span.tables[cache].at(span.last_page()));
        }
    }
    step.picks.assign(step.draws.size(), {});
    step.scores.assign(step.scored.size(), Score{});
    wanted_ = step.rows;
    for (const ScoredRow& scored : step.scored) wanted_.push_back(scored.row);
    for (const PooledRow& pooled : step.pooled) wanted_.push_back(pooled.row);
    stores_.cut(step);
    int64_t part_floats = 0;
    for (AttentionPlan& plan : plans_) {
        plan.cut(step);
        part_floats = std::max(part_floats, plan.part_floats());
    }
    parts_.resize(static_cast<size_t>(part_floats));
    adapters_.cut(step.adapted);
    expert_rows_.reserve_lows(step.adapted);
    const int with_logits = static_cast<int>(wanted_.size() - step.pooled.size());
    step_ = &step;
    try {
        const int last = step.last_stage < 0 ? stages() : step.last_stage;
        begin_pass(step.first_stage, last, 0, std::min(with_logits, max_rows_));
    } catch (...) {
        step_ = nullptr;
        throw;
    }
    left_ = Clock::now();
}

bool Program::finish() {
    if (step_ == nullptr) throw std::logic_error("no step has begun");
    const Clock::duration elsewhere = Clock::now() - left_;
    step_->may_sample.store(true, std::memory_order_release);
    try {
        finish_passes();
    } catch (...) {
        step_ = nullptr;
        throw;
    }
    step_ = nullptr;
    const std::chrono::duration<double> taken = Clock::now() - begun_ - elsewhere / pool_.threads();
    seconds_.store(seconds() + taken.count(), std::memory_order_relaxed);
    // Threads mark skipped items as complete, so the pool has drained and the caller sees the flag.
    return !abandoned();
}

// The first pass has begun; the others follow.
void Program::finish_passes() {
    const int all = static_cast<int>(wanted_.size());
    const int with_logits = all - static_cast<int>(step_->pooled.size());
    pool_.finish();
    if (step_->last_stage >= 0) return;  // rows come with the last piece
    for (int row = max_rows_; row < with_logits; row += max_rows_) {
        run_pass(rows_begin_, stages(), row, std::min(with_logits - row, max_rows_));
    }
    for (int row = with_logits; row < all; row += max_rows_) {
        run_pass(rows_begin_, logits_begin_, row, std::min(all - row, max_rows_));
    }
}

int Program::items(int stage) const {
    const Cut of_part = share(first_stage_ + stage);
    return of_part.last - of_part.first;
}

Cut Program::share(int stage) const {
    const auto first = static_cast<size_t>(stages_[static_cast<size_t>(stage)]);
    return cut(instructions_[first]->items(*this), step_->part, step_->parts);
}

int Program::barriers() const {
    return static_cast<int>(std::count_if(stages_.begin(), stages_.end(), [&](int first) {
        return instructions_[static_cast<size_t>(first)]->in_short_steps();
    }));
}

int Program::end_of(int stage) const {
    const auto next = static_cast<size_t>(stage) + 1;
    return next < stages_.size() ? stages_[next] : static_cast<int>(instructions_.size());
}

void Program::run(int stage, int item, int thread) {
    stage += first_stage_;
    if (step_->part > 0) item += share(stage).first;
    for (int i = stages_[static_cast<size_t>(stage)]; i < end_of(stage); ++i) {
        // Threads claim and complete items of an abandoned step without computing: the pool drains.
        if (abandoned()) return;
        run_instruction(i, item, thread);
    }
}

void Program::run_instruction(int instruction, int item, int thread) {
    Instruction& i = *instructions_[static_cast<size_t>(instruction)];
    if (!profiling_ || thread != 0) return i.run(*this, item, thread);
    const auto begin = Clock::now();
    i.run(*this, item, thread);
    nanoseconds_[static_cast<size_t>(instruction)] +=
        std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

void Program::write(int buffer, const float* values, int rows) {
    if (step_ != nullptr) throw std::logic_error("a step runs");
    Buffer& to = at(buffer);
    if (rows > (to.per_row ? max_rows_ : max_tokens_)) {
        throw std::invalid_argument("the buffer has fewer rows");
    }
    std::copy(values, values + static_cast<size_t>(rows) * to.width, to.values.data());
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
