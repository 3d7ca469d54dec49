// The part of the Python module that computes: programs and their steps.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "program.h"

namespace heddle {

namespace {

Activation activation(const std::string& name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu") return Activation::kGelu;
    if (name == "clamped") return Activation::kClamped;
    if (name == "sigmoid") return Activation::kSigmoid;
    if (name == "identity") return Activation::kIdentity;
    if (name == "gelu_erf") return Activation::kGeluErf;
    if (name == "relu") return Activation::kRelu;
    if (name == "silu_to_7") return Activation::kSiluTo7;
    if (name == "silu_to_16") return Activation::kSiluTo16;
    if (name == "limited") return Activation::kLimited;
    throw std::invalid_argument("no kernel computes the activation " + name);
}

Map map(const std::string& name) {
    if (name == "sigmoid") return Map::kSigmoid;
    if (name == "squared_relu") return Map::kSquaredRelu;
    if (name == "gelu") return Map::kGelu;
    if (name == "gelu_erf") return Map::kGeluErf;
    if (name == "relu") return Map::kRelu;
    if (name == "silu") return Map::kSilu;
    if (name == "tanh") return Map::kTanh;
    if (name == "xielu_tail") return Map::kXieluTail;
    throw std::invalid_argument("no kernel computes the activation " + name);
}

Scoring scoring(const std::string& name) {
    if (name == "softmax") return Scoring::kSoftmax;
    if (name == "softmax_of_chosen") return Scoring::kSoftmaxOfChosen;
    if (name == "sigmoid") return Scoring::kSigmoid;
    if (name == "sqrt_softplus") return Scoring::kSqrtSoftplus;
    if (name == "sparsemixer") return Scoring::kSparsemixer;
    throw std::invalid_argument("router logits have no scoring " + name);
}

// Fills spans from rows of (first row, tokens, first position) and, for each KV cache, (index of
// its first page in `pages`, number of that page); in a recurrent program, then the numbers of the
// state and of the kept state, and how many tokens are certain.
void add_spans(Step& step, const IntRows& spans, const Ints& pages, const Program& program) {
    const size_t caches = static_cast<size_t>(program.caches()),
                 states = program.is_recurrent() ? 3 : 0;
    const size_t width = 3 + 2 * caches + states;
    if (spans.shape(1) != width) {
        throw std::invalid_argument("spans are (n, " + std::to_string(width) + ")");
    }
    step.tables.reserve(spans.shape(0) * caches);
    for (size_t i = 0; i < spans.shape(0); ++i) {
        const int32_t* s = spans.data() + i * width;
        const PageTable* tables = step.tables.data() + step.tables.size();
        const int64_t end = (int64_t{s[2]} + s[1] - 1) / kPageTokens + 1;
        const int32_t* const of_states = s + width - states;
        for (const int32_t* t = s + 3; t < of_states; t += 2) {
            const bool sensible = s[1] >= 1 && s[2] >= 0 && t[0] >= 0 && t[1] >= 0 && t[1] < end;
            if (!sensible || t[0] + (end - t[1]) > static_cast<int64_t>(pages.size())) {
                throw std::invalid_argument("a span reaches past its page table");
            }
            step.tables.push_back({pages.data() + t[0], t[1]});
        }
        step.spans.push_back({s[0], s[1], s[2], tables, -1, -1, 0});
        if (states > 0) {
            Span& span = step.spans.back();
            span.state = of_states[0];
            span.kept_state = of_states[1];
            span.certain = of_states[2];
        }
    }
}

using Sums = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Fills the scored rows, from rows of (token row, target, top), and the pooled rows, from spans of
// (first token row, tokens, sums).
void add_readout(Step& step, const Program& program, const std::optional<IntRows>& scored,
                 const std::vector<std::tuple<int, int, Sums>>& pooled) {
    if (scored && scored->shape(1) != 3) throw std::invalid_argument("scored rows are (n, 3)");
    for (size_t i = 0; scored && i < scored->shape(0); ++i) {
        const int32_t* s = scored->data() + i * 3;
        step.scored.push_back({s[0], s[1], s[2]});
    }
    for (const auto& [first, count, sums] : pooled) {
        if (static_cast<int>(sums.size()) != program.pooled_width()) {
            throw std::invalid_argument("a sum has another width than the states it is of");
        }
        if (first < 0 || count < 1 || count > step.tokens - first) {
            throw std::invalid_argument("pooled rows reach past the step");
        }
        for (int i = 0; i < count; ++i) step.pooled.push_back({first + i, sums.data()});
    }
}

using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What a step reads of pictures: places (tokens, axes), runs (tokens, 2 * kinds), and rows with the
// first token of each part.
struct Sight {
    std::optional<IntRows> places, runs;
    std::vector<std::tuple<int, FloatRows>> seen;

    void add_to(Step& step) const {
        const auto tokens = static_cast<size_t>(step.tokens);
        if (places) {
            if (places->shape(0) != tokens) throw std::invalid_argument("a place for each token");
            step.places = places->data();
            step.axes = static_cast<int>(places->shape(1));
        }
        if (runs) {
            if (runs->shape(0) != tokens || runs->shape(1) % 2 != 0) {
                throw std::invalid_argument("runs of each token, as pairs");
            }
            step.runs = runs->data();
            step.run_kinds = static_cast<int>(runs->shape(1) / 2);
        }
        for (const auto& [row, values] : seen) {
            step.seen.push_back({row, static_cast<int>(values.shape(0)),
                                 static_cast<int>(values.shape(1)), values.data()});
        }
    }
};

// A step that a program computes, and the memory that the step points into. Lives on the heap and
// is never moved.
class Submitted {
  public:
    Submitted(nb::object owner, Ints ids, Ints positions, const IntRows& spans, Ints pages,
              const Ints& rows, const nb::list& samplers, bool may_sample,
              const std::optional<IntRows>& scored, std::vector<std::tuple<int, int, Sums>> pooled,
              const std::vector<int>& guesses,
              std::vector<std::tuple<int, int, std::shared_ptr<Adapter>, float>> adapted,
              Sight sight, std::pair<int, int> piece, std::pair<int, int> part)
        : owner_(std::move(owner)),
          program_(nb::cast<Program&>(owner_)),
          ids_(std::move(ids)),
          positions_(std::move(positions)),
          pages_(std::move(pages)),
          samplers_(samplers),
          pooled_(std::move(pooled)),
          sight_(std::move(sight)) {
        if (ids_.size() != positions_.size()) {
            throw std::invalid_argument("as many positions as ids");
        }
        step_.tokens = static_cast<int>(ids_.size());
        step_.ids = ids_.data();
        step_.positions = positions_.data();
        step_.rows.assign(rows.data(), rows.data() + rows.size());
        add_draws(guesses);
        for (auto& [row, tokens, adapter, factor] : adapted) {
            step_.adapted.push_back({row, tokens, std::move(adapter), factor});
        }
        step_.may_sample = may_sample;
        add_spans(step_, spans, pages_, program_);
        add_readout(step_, program_, scored, pooled_);
        sight_.add_to(step_);
        step_.first_stage = piece.first;
        step_.last_stage = piece.second;
        step_.part = part.first;
        step_.parts = part.second;
        program_.begin(step_);
        open_ = true;
    }
    ~Submitted() {
        try {
            if (open_) close();
        } catch (...) {  // no caller wants this result or its error
        }
    }
    Submitted(const Submitted&) = delete;
    Submitted& operator=(const Submitted&) = delete;

    std::optional<nb::tuple> finish() {
        if (!open_) throw std::invalid_argument("the step was finished before");
        if (!close()) return std::nullopt;
        nb::list picks;
        for (const std::vector<Pick>& of_draw : step_.picks) {
            nb::list made;
            for (const Pick& pick : of_draw) made.append(pick_tuple(pick));
            picks.append(made);
        }
        nb::list scores;
        for (const Score& s : step_.scores) scores.append(nb::make_tuple(s.logprob, s.rank, s.top));
        return nb::make_tuple(picks, scores);
    }

  private:
    void add_draws(const std::vector<int>& guesses) {
        if (!guesses.empty() && guesses.size() != samplers_.size()) {
            throw std::invalid_argument("as many numbers of guesses as samplers");
        }
        int first = 0;
        for (size_t i = 0; i < samplers_.size(); ++i) {
            const int count = guesses.empty() ? 1 : 1 + guesses[i];
            step_.draws.push_back({nb::cast<Sampler*>(samplers_[i]), first, count});
            first += count;
        }
    }
    bool close() {
        open_ = false;
        nb::gil_scoped_release release;
        return program_.finish();
    }

    nb::object owner_;
    Program& program_;
    Ints ids_, positions_, pages_;
    nb::tuple samplers_;  // not the list, which its owner may change
    std::vector<std::tuple<int, int, Sums>> pooled_;
    Sight sight_;
    Step step_;
    bool open_ = false;
};

using FloatMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

FloatMatrix copy_rows(const Program& program, int buffer, int rows) {
    const size_t width = static_cast<size_t>(program.width(buffer));
    const size_t count = static_cast<size_t>(rows) * width;
    if (rows < 0 || rows > program.rows(buffer)) throw std::invalid_argument("no such rows");
    float* copy = new float[count];
    std::copy(program.data(buffer), program.data(buffer) + count, copy);
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return FloatMatrix(copy, {static_cast<size_t>(rows), width}, owner);
}

void extend_rope(Program& program, int table, const FloatRows& cosine, const FloatRows& sine) {
    if (cosine.shape(0) != sine.shape(0) || cosine.shape(1) != sine.shape(1)) {
        throw std::invalid_argument("a rope table needs as many sines as cosines");
    }
    const int pairs = static_cast<int>(cosine.shape(1)),
              positions = static_cast<int>(cosine.shape(0));
    program.extend_rope(table, cosine.data(), sine.data(), pairs, positions);
}

void write_rows(Program& program, int buffer, const FloatRows& values) {
    if (static_cast<int>(values.shape(1)) != program.width(buffer)) {
        throw std::invalid_argument("the values have another width than the buffer");
    }
    program.write(buffer, values.data(), static_cast<int>(values.shape(0)));
}

using Matrices = std::vector<std::shared_ptr<Matrix>>;

void add_experts(Program& p, int in, int logits, int out, const Matrices& gate, const Matrices& up,
                 const Matrices& down, int used, const std::string& scoring_name, bool normalised,
                 float scale, int groups, int groups_used, int group_best, Floats selection_bias,
                 const std::string& activation_name, const std::optional<Floats>& expert_scales,
                 bool weighs_input) {
    auto layer = std::make_shared<ExpertLayer>();
    layer->weighs_input = weighs_input;
    layer->routing = {static_cast<int>(up.size()),
                      used,
                      scoring(scoring_name),
                      normalised,
                      scale,
                      groups,
                      groups_used,
                      group_best,
                      vector_of(selection_bias),
                      expert_scales ? vector_of(*expert_scales) : std::vector<float>()};
    if (!gate.empty()) {
        layer->activation = activation(activation_name);
    } else {
        layer->map = map(activation_name);
    }
    layer->gate.assign(gate.begin(), gate.end());
    layer->up.assign(up.begin(), up.end());
    layer->down.assign(down.begin(), down.end());
    p.experts(std::move(layer), in, logits, out);
}

std::shared_ptr<Adapter> make_adapter(
    const Program& p,
    std::vector<std::tuple<std::shared_ptr<Matrix>, std::shared_ptr<Matrix>,
                           std::shared_ptr<Matrix>, std::vector<float>, std::vector<float>, bool>>
        changes) {
    std::vector<SiteChange> list;
    for (auto& [matrix, a, b, scales, gains, is_lookup] : changes) {
        list.push_back({matrix, {a, b, std::move(scales), std::move(gains)}, is_lookup});
    }
    return p.adapter(std::move(list));
}

}  // namespace

void bind_program(nb::module_& m) {
    nb::class_<Submitted>(m, "Step", "A step that threads compute; dropping it waits for its end.")
        .def("finish", &Submitted::finish,
             "Joins in until the step has ended. Returns (token, logprob, top) per sampler and "
             "(logprob, rank, top) per scored row; None if the step was abandoned.");
    nb::class_<Adapter>(m, "Adapter", "Low-rank changes of a program's matrices.")
        .def_prop_ro("bytes", &Adapter::bytes);
    nb::class_<Program>(m, "Program", "A recorded model; see native/program.h.")
        .def(
            "__init__",
            [](Program* self, Runtime& runtime, std::vector<std::shared_ptr<KvCache>> caches,
               int max_tokens, int max_rows, std::shared_ptr<FixedStates> states) {
                new (self) Program(runtime.pool, runtime.kernels, std::move(caches), max_tokens,
                                   max_rows, std::move(states));
            },
            nb::arg("runtime"), nb::arg("caches"), nb::arg("max_tokens"), nb::arg("max_rows"),
            nb::arg("states") = nb::none(), nb::keep_alive<1, 2>(),
            "`caches`: a KvCache for each group of layers. `states` of recurrent layers, or None.")
        .def("buffer", &Program::buffer, nb::arg("width"), nb::arg("per_row"))
        .def("rope_table", &Program::rope_table, nb::arg("dim"), nb::arg("interleaved"),
             nb::arg("positions"))
        .def("extend_rope", &extend_rope, nb::arg("table"), nb::arg("cosine"), nb::arg("sine"))
        .def(
            "position_bias",
            [](Program& p, int heads, int positions, Floats values) {
                return p.position_bias(heads, positions, vector_of(values));
            },
            nb::arg("heads"), nb::arg("positions"), nb::arg("values"))
        .def(
            "embed",
            [](Program& p, std::shared_ptr<Matrix> table, int out, bool by_position, int first) {
                const Lookups by = by_position ? Lookups::kPositions : Lookups::kTokens;
                p.embed(std::move(table), out, by, first);
            },
            nb::arg("table"), nb::arg("out"), nb::arg("by_position") = false, nb::arg("first") = 0,
            "Looks rows up.")
        .def(
            "embed_segments",
            [](Program& p, std::shared_ptr<Matrix> table, int separator, int out) {
                p.embed_segments(std::move(table), separator, out);
            },
            nb::arg("table"), nb::arg("separator"), nb::arg("out"))
        .def(
            "embed_previous",
            [](Program& p, std::shared_ptr<Matrix> table, int start, int out) {
                p.embed_previous(std::move(table), start, out);
            },
            nb::arg("table"), nb::arg("start"), nb::arg("out"))
        .def("mean_rows", &Program::mean_rows, nb::arg("in_"), nb::arg("out"))
        .def(
            "norm",
            [](Program& p, int in, Floats weight, float eps, int out, bool quantise) {
                p.norm(in, vector_of(weight), eps, out, quantise);
            },
            nb::arg("in_"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"), nb::arg("quantise"))
        .def(
            "layer_norm",
            [](Program& p, int in, Floats weight, Floats bias, float eps, int out, bool quantise) {
                p.layer_norm(in, vector_of(weight), vector_of(bias), eps, out, quantise);
            },
            nb::arg("in_"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"), nb::arg("out"),
            nb::arg("quantise"))
        .def("quantise", &Program::quantise, nb::arg("in_"))
        .def(
            "matmul",
            [](Program& p, int in, std::vector<std::pair<std::shared_ptr<Matrix>, int>> parts,
               bool accumulate) {
                std::vector<MatmulPart> list;
                for (auto& [matrix, out] : parts) list.push_back({std::move(matrix), out});
                p.matmul(in, std::move(list), accumulate);
            },
            nb::arg("in_"), nb::arg("parts"), nb::arg("accumulate"))
        .def(
            "head_matmul",
            [](Program& p, int in, const Matrices& matrices, int out) {
                p.head_matmul(in, {matrices.begin(), matrices.end()}, out);
            },
            nb::arg("in_"), nb::arg("matrices"), nb::arg("out"))
        .def(
            "gated",
            [](Program& p, int gate, int up, const std::string& name, int out, bool quantise) {
                p.gated(activation(name), gate, up, out, quantise);
            },
            nb::arg("gate"), nb::arg("up"), nb::arg("activation"), nb::arg("out"),
            nb::arg("quantise"))
        .def("experts", &add_experts, nb::arg("in_"), nb::arg("logits"), nb::arg("out"),
             nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::kw_only(), nb::arg("used"),
             nb::arg("scoring"), nb::arg("normalised"), nb::arg("scale"), nb::arg("groups"),
             nb::arg("groups_used"), nb::arg("group_best"), nb::arg("selection_bias"),
             nb::arg("activation"), nb::arg("expert_scales") = nb::none(),
             nb::arg("weighs_input") = false,
             "The weighted sum of the experts that `logits` choose; see ExpertSpec.")
        .def(
            "norm_heads",
            [](Program& p, int in, Floats weight, float eps, int heads) {
                p.norm_heads(in, vector_of(weight), eps, heads);
            },
            nb::arg("in_"), nb::arg("weight"), nb::arg("eps"), nb::arg("heads"))
        .def("scale", &Program::scale, nb::arg("in_"), nb::arg("factor"))
        .def("soft_cap", &Program::soft_cap, nb::arg("in_"), nb::arg("cap"))
        .def("rope", &Program::rope, nb::arg("in_"), nb::arg("table"), nb::arg("heads"),
             nb::arg("first") = 0, nb::arg("axes") = nb::make_tuple())
        .def("see", &Program::see, nb::arg("in_"), nb::arg("first"), nb::arg("adds"))
        .def(
            "take_columns",
            [](Program& p, int in, int first, int out, int heads) {
                p.take_columns(in, first, heads, out);
            },
            nb::arg("in_"), nb::arg("first"), nb::arg("out"), nb::arg("heads") = 1)
        .def(
            "activate",
            [](Program& p, int in, const std::string& name, bool quantise) {
                p.activate(map(name), in, quantise);
            },
            nb::arg("in_"), nb::arg("activation"), nb::arg("quantise") = false)
        .def(
            "step_size",
            [](Program& p, int in, Floats bias, float least, float most) {
                p.step_size(in, vector_of(bias), least, most);
            },
            nb::arg("in_"), nb::arg("bias"), nb::arg("least"), nb::arg("most"))
        .def(
            "decay",
            [](Program& p, int in, Floats rates, int out) { p.decay(in, vector_of(rates), out); },
            nb::arg("in_"), nb::arg("rates"), nb::arg("out"))
        .def(
            "conv",
            [](Program& p, int in, int taps, Floats filters, const std::optional<Floats>& bias,
               int64_t place, bool silu, int out) {
                p.conv({in, taps, vector_of(filters),
                        bias ? vector_of(*bias) : std::vector<float>(), place, silu, out});
            },
            nb::arg("in_"), nb::kw_only(), nb::arg("taps"), nb::arg("filters"), nb::arg("bias"),
            nb::arg("place"), nb::arg("silu"), nb::arg("out"),
            "A causal convolution; `filters` are (taps, width) as one vector.")
        .def(
            "linear_attend",
            [](Program& p, int q, int k, int v, int decay, int strength, int heads, int key_heads,
               int key_dim, int value_dim, bool corrects, bool tiled, int64_t place,
               const std::optional<Floats>& skip, int out) {
                p.linear_attend({q, k, v, decay, strength, heads, key_heads, key_dim, value_dim,
                                 corrects, tiled, place,
                                 skip ? vector_of(*skip) : std::vector<float>(), out});
            },
            nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("decay"), nb::arg("strength"),
            nb::kw_only(), nb::arg("heads"), nb::arg("key_heads"), nb::arg("key_dim"),
            nb::arg("value_dim"), nb::arg("corrects"), nb::arg("tiled"), nb::arg("place"),
            nb::arg("skip"), nb::arg("out"))
        .def(
            "selective_scan",
            [](Program& p, int q, int k, int v, int step, Floats rates, Floats skip, int64_t place,
               int out) {
                p.selective_scan({q, k, v, step, vector_of(rates), vector_of(skip), place, out});
            },
            nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("step"), nb::kw_only(),
            nb::arg("rates"), nb::arg("skip"), nb::arg("place"), nb::arg("out"))
        .def(
            "compress",
            [](Program& p, int x, int gate, int ratio, bool overlaps, Floats bias, int64_t place,
               int out) { p.compress({x, gate, ratio, overlaps, vector_of(bias), place, out}); },
            nb::arg("x"), nb::arg("gate"), nb::kw_only(), nb::arg("ratio"), nb::arg("overlaps"),
            nb::arg("bias"), nb::arg("place"), nb::arg("out"))
        .def(
            "attend_compressed",
            [](Program& p, int q, int layer, int cache, int heads, float scale, int window,
               int ratio, Floats sinks, int out) {
                p.attend_compressed(
                    {q, layer, cache, heads, scale, window, ratio, vector_of(sinks), out});
            },
            nb::arg("q"), nb::kw_only(), nb::arg("layer"), nb::arg("cache"), nb::arg("heads"),
            nb::arg("scale"), nb::arg("window"), nb::arg("ratio"), nb::arg("sinks"), nb::arg("out"))
        .def(
            "stream_weights",
            [](Program& p, int in, int streams, Floats base, Floats scales, int turns, float eps,
               int out) {
                p.stream_weights(
                    {in, streams, vector_of(base), vector_of(scales), turns, eps, out});
            },
            nb::arg("in_"), nb::kw_only(), nb::arg("streams"), nb::arg("base"), nb::arg("scales"),
            nb::arg("turns"), nb::arg("eps"), nb::arg("out"))
        .def("collapse", &Program::collapse, nb::arg("streams"), nb::arg("weights"), nb::arg("out"))
        .def("expand", &Program::expand, nb::arg("streams"), nb::arg("result"), nb::arg("weights"),
             nb::arg("out"))
        .def(
            "keep_listed",
            [](Program& p, int in, const Ints& table, int listed, int out) {
                p.keep_listed(in, {table.data(), table.data() + table.size()}, listed, out);
            },
            nb::arg("in_"), nb::arg("table"), nb::arg("listed"), nb::arg("out"))
        .def(
            "token_shift",
            [](Program& p, int in, Floats shares, int64_t place, int out) {
                p.token_shift({in, vector_of(shares), place, out});
            },
            nb::arg("in_"), nb::arg("shares"), nb::arg("place"), nb::arg("out"))
        .def(
            "rwkv_attend",
            [](Program& p, int r, int k, int v, int decay, int rate, Floats removal,
               Floats replacement, Floats bonus, Floats norm, Floats norm_bias, int heads,
               int64_t place, float eps, int out) {
                p.rwkv_attend({r, k, v, decay, rate, vector_of(removal), vector_of(replacement),
                               vector_of(bonus), vector_of(norm), vector_of(norm_bias), heads,
                               place, eps, out});
            },
            nb::arg("r"), nb::arg("k"), nb::arg("v"), nb::arg("decay"), nb::arg("rate"),
            nb::arg("removal"), nb::arg("replacement"), nb::arg("bonus"), nb::arg("norm"),
            nb::arg("norm_bias"), nb::arg("heads"), nb::arg("place"), nb::arg("eps"),
            nb::arg("out"))
        .def("join", &Program::join, nb::arg("x"), nb::arg("y"), nb::arg("out"),
             "The columns of x, then those of y.")
        .def("store_kv", &Program::store_kv, nb::arg("k"), nb::arg("v"), nb::arg("layer"),
             nb::arg("cache") = 0, "`layer` counts within the cache with index `cache`.")
        .def(
            "attend",
            [](Program& self, int q, int layer, int heads, float scale, int window, int out,
               bool quantise, int cache, bool causal, float soft_cap,
               const std::optional<Floats>& sinks, int bias, bool aligned, int runs) {
                AttentionShape shape = {q, layer, cache, heads, scale, out, quantise};
                shape.window = window;
                shape.aligned = aligned;
                shape.causal = causal;
                shape.soft_cap = soft_cap;
                if (sinks) shape.sinks = vector_of(*sinks);
                shape.bias = bias;
                shape.runs = runs;
                self.attend(std::move(shape));
            },
            nb::arg("q"), nb::arg("layer"), nb::arg("heads"), nb::arg("scale"), nb::arg("window"),
            nb::arg("out"), nb::arg("quantise"), nb::arg("cache") = 0, nb::arg("causal") = true,
            nb::arg("soft_cap") = 0.0f, nb::arg("sinks") = nb::none(), nb::arg("bias") = -1,
            nb::arg("aligned") = false, nb::arg("runs") = 0)
        .def("store_latents", &Program::store_latents, nb::arg("latent"), nb::arg("key"),
             nb::arg("layer"), nb::arg("cache"))
        .def(
            "latent_attend",
            [](Program& self, int q_latent, int q, int layer, int heads, float scale, int out,
               bool quantise, int cache) {
                AttentionShape shape = {q_latent, layer, cache, heads, scale, out, quantise};
                shape.turned = q;
                self.attend(std::move(shape));
            },
            nb::arg("q_latent"), nb::arg("q"), nb::arg("layer"), nb::arg("heads"), nb::arg("scale"),
            nb::arg("out"), nb::arg("quantise"), nb::arg("cache"))
        .def(
            "gate_rows",
            [](Program& p, int x, int gate, int out, const std::string& name) {
                p.gate_rows(x, gate, out, activation(name));
            },
            nb::arg("x"), nb::arg("gate"), nb::arg("out"), nb::arg("activation") = "sigmoid")
        .def("mix_heads", &Program::mix_heads, nb::arg("x"), nb::arg("factors"), nb::arg("heads"),
             nb::arg("out"))
        .def("add", &Program::add, nb::arg("x"), nb::arg("y"), nb::arg("out"))
        .def("take_rows", &Program::take_rows, nb::arg("in_"), nb::arg("out"))
        .def("pool", &Program::pool, nb::arg("states"))
        .def("sample", &Program::sample, nb::arg("logits"))
        .def("adapter", &make_adapter, nb::arg("changes"),
             "An adapter, from (matrix, a, b, scales, gains, is_lookup) of each change.")
        .def(
            "begin",
            [](nb::object self, Ints ids, Ints positions, IntRows spans, Ints pages, Ints rows,
               const nb::list& samplers, bool may_sample, std::optional<IntRows> scored,
               std::vector<std::tuple<int, int, Sums>> pooled, const std::vector<int>& guesses,
               std::vector<std::tuple<int, int, std::shared_ptr<Adapter>, float>> adapted,
               std::optional<IntRows> places, std::optional<IntRows> runs,
               std::vector<std::tuple<int, FloatRows>> seen, std::pair<int, int> piece,
               std::pair<int, int> part) {
                return std::make_unique<Submitted>(
                    std::move(self), std::move(ids), std::move(positions), spans, std::move(pages),
                    rows, samplers, may_sample, scored, std::move(pooled), guesses,
                    std::move(adapted), Sight{std::move(places), std::move(runs), std::move(seen)},
                    piece, part);
            },
            nb::arg("ids"), nb::arg("positions"), nb::arg("spans"), nb::arg("pages"),
            nb::arg("rows"), nb::arg("samplers"), nb::arg("may_sample") = true,
            nb::arg("scored") = nb::none(), nb::arg("pooled") = nb::make_tuple(),
            nb::arg("guesses") = nb::make_tuple(), nb::arg("adapted") = nb::make_tuple(),
            nb::arg("places") = nb::none(), nb::arg("runs") = nb::none(),
            nb::arg("seen") = nb::make_tuple(), nb::arg("piece") = nb::make_tuple(0, -1),
            nb::arg("part") = nb::make_tuple(0, 1),
            "Starts a step and returns it. Spans are (first row, tokens, first position) and, for "
            "each cache, (index of the first page in pages, number of that page), scored rows "
            "(row, target, top), pooled ones (first row, rows, sums). A sampler with n guesses has "
            "n + 1 rows. `adapted` has (first row, rows, adapter, factor). Places (tokens, axes) "
            "turn rotations of several axes, runs (tokens, 2 * kinds) are what attention sees "
            "whole, `seen` has (first row, rows of a picture). `piece` has the first stage and the "
            "one after the last; -1: all that follow. `part` is a number and how many parts the "
            "items of stages have.")
        .def("abandon", &Program::abandon,
             "End the step in flight soon and later ones at once, for good. Any thread may call.")
        .def_prop_ro("pooled_width", &Program::pooled_width)
        .def_prop_ro("barriers", &Program::barriers)
        .def_prop_ro("token_stages", &Program::token_stages,
                     "Stages over tokens; a piece of a step ends before one of them.")
        .def_prop_ro("seconds", &Program::seconds,
                     "Wall time of all steps, as if their callers had joined in at once.")
        .def("copy", &copy_rows, nb::arg("buffer"), nb::arg("rows"))
        .def("write", &write_rows, nb::arg("buffer"), nb::arg("values"),
             "Sets the first rows of an input buffer for the next step.")
        .def("take_profile",
             [](Program& p) {
                 nb::list list;
                 for (const auto& [kind, ns] : p.take_profile()) {
                     list.append(nb::make_tuple(kind, ns));
                 }
                 return list;
             })
        .def("set_profiling", &Program::set_profiling, nb::arg("on"));
}

}  // namespace heddle
