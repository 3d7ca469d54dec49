// The Python module heddle._native. Shapes and indices are checked here or in Program; errors are
// ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <variant>

#include "engram.h"
#include "lookup.h"
#include "machine_limits.h"
#include "program.h"

namespace nb = nanobind;
using namespace heddle;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> found;
    for (const Kernels* k : {avx512_kernels(), avxvnni_kernels(), avx2_kernels(), neon_kernels(),
                             portable_kernels()}) {
        if (k && supported(k)) found.push_back(k);
    }
    return found;
}

const Kernels& level(const std::string& name) {
    for (const Kernels* k : levels()) {
        if (name == "auto" || name == k->name) return *k;
    }
    throw std::invalid_argument("this machine cannot run instruction level " + name);
}

KvType kv_type(const std::string& name) {
    if (name == "f16") return KvType::kF16;
    if (name == "q8_0") return KvType::kQ8_0;
    throw std::invalid_argument("no KV cache is of type " + name);
}

Activation activation(const std::string& name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu") return Activation::kGelu;
    if (name == "clamped") return Activation::kClamped;
    throw std::invalid_argument("no kernel computes the activation " + name);
}

Scoring scoring(const std::string& name) {
    if (name == "softmax") return Scoring::kSoftmax;
    if (name == "softmax_of_chosen") return Scoring::kSoftmaxOfChosen;
    if (name == "sigmoid") return Scoring::kSigmoid;
    throw std::invalid_argument("router logits have no scoring " + name);
}

void check_page_size(const KvCache& kv, size_t bytes) {
    if (bytes != static_cast<size_t>(kv.page_bytes())) {
        throw std::invalid_argument("a page has " + std::to_string(kv.page_bytes()) + " bytes");
    }
}

std::vector<float> vector_of(Floats array) { return {array.data(), array.data() + array.size()}; }

// The format of a tensor that has `bytes` bytes.
Format checked_format(int type, int64_t bytes, int rows, int columns) {
    const Format format = format_of(type);
    if (rows < 1 || columns < 1 || bytes != rows * row_bytes(format, columns)) {
        throw std::invalid_argument("tensor data does not have the size of its shape");
    }
    return format;
}

// Threads and the kernels they run.
struct Runtime {
    Runtime(int threads, const std::string& isa) : kernels(level(isa)), pool(checked(threads)) {}
    static int checked(int threads) {
        if (threads < 1 || threads > 1024)
            throw std::invalid_argument("threads must be in [1, 1024]");
        return threads;
    }
    const Kernels& kernels;
    ThreadPool pool;
};

// The bytes of an open file from `offset` on.
struct FileBytes {
    int file;
    int64_t offset;
    int64_t size;
};

using Raw = std::variant<FileBytes, Bytes>;

int64_t size_of(const Raw& raw) {
    const auto* file = std::get_if<FileBytes>(&raw);
    return file ? file->size : static_cast<int64_t>(std::get<Bytes>(raw).size());
}

TensorBytes bytes_of(const Raw& raw) {
    const auto* file = std::get_if<FileBytes>(&raw);
    return file ? TensorBytes(file->file, file->offset) : TensorBytes(std::get<Bytes>(raw).data());
}

void check_sequences(const std::vector<TokenSequence>& sequences) {
    for (const TokenSequence& sequence : sequences) {
        if (sequence.empty()) throw std::invalid_argument("a token sequence must not be empty");
    }
}

nb::tuple pick_tuple(const Pick& pick) {
    return nb::make_tuple(pick.token, pick.logprob, pick.top);
}

// Fills spans from rows of (first row, tokens, first position) and, for each KV cache, (index of
// its first page in `pages`, number of that page).
void add_spans(Step& step, const IntRows& spans, const Ints& pages, int caches) {
    const size_t width = 3 + 2 * static_cast<size_t>(caches);
    if (spans.shape(1) != width) {
        throw std::invalid_argument("spans are (n, " + std::to_string(width) + ")");
    }
    step.tables.reserve(spans.shape(0) * caches);
    for (size_t i = 0; i < spans.shape(0); ++i) {
        const int32_t* s = spans.data() + i * width;
        const PageTable* tables = step.tables.data() + step.tables.size();
        const int64_t end = (int64_t{s[2]} + s[1] - 1) / kPageTokens + 1;
        for (const int32_t* t = s + 3; t < s + width; t += 2) {
            const bool sensible = s[1] >= 1 && s[2] >= 0 && t[0] >= 0 && t[1] >= 0 && t[1] < end;
            if (!sensible || t[0] + (end - t[1]) > static_cast<int64_t>(pages.size())) {
                throw std::invalid_argument("a span reaches past its page table");
            }
            step.tables.push_back({pages.data() + t[0], t[1]});
        }
        step.spans.push_back({s[0], s[1], s[2], tables});
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

// A step that a program computes, and the memory that the step points into. Lives on the heap and
// is never moved.
class Submitted {
  public:
    Submitted(nb::object owner, Ints ids, Ints positions, const IntRows& spans, Ints pages,
              const Ints& rows, const nb::list& samplers, bool may_sample,
              const std::optional<IntRows>& scored, std::vector<std::tuple<int, int, Sums>> pooled,
              const std::vector<int>& guesses)
        : owner_(std::move(owner)),
          program_(nb::cast<Program&>(owner_)),
          ids_(std::move(ids)),
          positions_(std::move(positions)),
          pages_(std::move(pages)),
          samplers_(samplers),
          pooled_(std::move(pooled)) {
        if (ids_.size() != positions_.size()) {
            throw std::invalid_argument("as many positions as ids");
        }
        step_.tokens = static_cast<int>(ids_.size());
        step_.ids = ids_.data();
        step_.positions = positions_.data();
        step_.rows.assign(rows.data(), rows.data() + rows.size());
        add_draws(guesses);
        step_.may_sample = may_sample;
        add_spans(step_, spans, pages_, program_.caches());
        add_readout(step_, program_, scored, pooled_);
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

void bind_storage(nb::module_& m) {
    nb::class_<Runtime>(m, "Runtime", "Compute threads (the caller included) and their kernels.")
        .def(nb::init<int, const std::string&>(), nb::arg("threads"), nb::arg("isa"))
        .def_prop_ro("isa", [](const Runtime& r) { return r.kernels.name; })
        .def_prop_ro("threads", [](const Runtime& r) { return r.pool.threads(); })
        .def_prop_ro("multiplication", [](const Runtime& r) { return r.kernels.multiplication; })
        .def(
            "read_rate",
            [](Runtime& r, int64_t bytes, double seconds) {
                if (bytes < 1) throw std::invalid_argument("a buffer has at least one byte");
                return read_rate(r.pool, bytes, seconds);
            },
            nb::arg("bytes"), nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "multiply_rate",
            [](Runtime& r, double seconds) { return multiply_rate(r.pool, r.kernels, seconds); },
            nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Arena>(m, "Arena", "Memory that packed matrices live in.")
        .def(nb::init<>())
        .def_prop_ro("allocated", &Arena::allocated, "Bytes handed out.");
    nb::class_<FileBytes>(m, "FileBytes", "Bytes of an open file, by its descriptor.")
        .def(nb::init<int, int64_t, int64_t>(), nb::arg("file"), nb::arg("offset"),
             nb::arg("size"));
    nb::class_<Matrix>(m, "Matrix", "A matrix (rows, columns) packed from its file bytes.")
        .def(
            "__init__",
            [](Matrix* self, Arena& arena, Runtime& runtime, int type, const Raw& raw, int rows,
               int columns, Floats bias, std::optional<int> stored) {
                std::vector<float> values = vector_of(bias);
                const Format from =
                    checked_format(stored.value_or(type), size_of(raw), rows, columns);
                const Format format = format_of(type);
                const TensorBytes bytes = bytes_of(raw);
                nb::gil_scoped_release release;
                new (self) Matrix(arena, runtime.pool, runtime.kernels, format, bytes, rows,
                                  columns, std::move(values), from);
            },
            nb::arg("arena"), nb::arg("runtime"), nb::arg("type"), nb::arg("raw"), nb::arg("rows"),
            nb::arg("columns"), nb::arg("bias"), nb::arg("stored") = nb::none(),
            nb::keep_alive<1, 2>(),
            "RuntimeError: the file ends before the matrix does, or cannot be read.")
        .def_prop_ro("bytes", &Matrix::bytes)
        .def_prop_ro("non_finite_row", &Matrix::non_finite_row)
        .def_prop_ro("quantised",
                     [](const Matrix& matrix) { return is_quantised(matrix.packed().format); });
    nb::class_<KvCache>(m, "KvCache", "Pages of keys and values of one type, f16 or q8_0.")
        .def(
            "__init__",
            [](KvCache* self, const std::string& type, int layers, int kv_heads, int head_dim,
               int64_t pages) {
                if (layers < 0 || kv_heads < 1 || head_dim < 1 || pages < 1 || pages > INT32_MAX) {
                    throw std::invalid_argument("a KV cache needs positive sizes");
                }
                new (self) KvCache(kv_type(type), layers, kv_heads, head_dim, pages);
            },
            nb::arg("type"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("pages"))
        .def_static(
            "bytes_of_page",
            [](const std::string& type, int layers, int kv_heads, int head_dim) {
                return KvCache::page_bytes(kv_type(type), layers, kv_heads, head_dim);
            },
            nb::arg("type"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"))
        .def("copy", &KvCache::copy, nb::arg("source"), nb::arg("target"),
             nb::call_guard<nb::gil_scoped_release>(), "Copy a page to another page.")
        .def(
            "read",
            [](KvCache& kv, int64_t page, const MutableBytes& bytes) {
                check_page_size(kv, bytes.size());
                nb::gil_scoped_release release;  // `bytes` holds its buffer
                kv.read(page, bytes.data());
            },
            nb::arg("page"), nb::arg("bytes"), "Copies a page's bytes out.")
        .def(
            "write",
            [](KvCache& kv, int64_t page, const Bytes& bytes) {
                check_page_size(kv, bytes.size());
                nb::gil_scoped_release release;
                kv.write(page, bytes.data());
            },
            nb::arg("page"), nb::arg("bytes"), "Copy `bytes`, as `read` gave them, into a page.")
        .def_prop_ro("pages", &KvCache::pages)
        .def_prop_ro("page_bytes", [](const KvCache& kv) { return kv.page_bytes(); });
}

void bind_sampler_params(nb::module_& m) {
    nb::class_<Breakers>(m, "Breakers", "DRY's breakers: token sequences that end a repetition.")
        .def("__init__", [](Breakers* self, const std::vector<TokenSequence>& sequences) {
            check_sequences(sequences);
            new (self) Breakers(sequences);
        });
    nb::class_<TokenPieces>(m, "TokenPieces",
                            "The bytes of all tokens, and which of them end an output.")
        .def("__init__",
             [](TokenPieces* self, const std::vector<nb::bytes>& texts, std::vector<int> ends) {
                 std::vector<std::string> copies;
                 for (const nb::bytes& text : texts) copies.emplace_back(text.c_str(), text.size());
                 new (self) TokenPieces(copies, std::move(ends));
             });
    nb::class_<SamplerParams>(m, "SamplerParams",
                              "What a sampler does; the default is a plain draw.")
        .def(
            "__init__",
            [](SamplerParams* self, const std::unordered_map<std::string, double>& numbers,
               const std::vector<std::string>& order) {
                SamplerParams params;
                for (const auto& [name, value] : numbers) set_number(params, name, value);
                for (const std::string& name : order) params.order.push_back(find_stage(name));
                new (self) SamplerParams(std::move(params));
            },
            nb::arg("numbers"), nb::arg("order"))
        .def_prop_rw(
            "dry_breakers", [](const SamplerParams& p) { return p.dry_breakers; },
            [](SamplerParams& p, std::shared_ptr<Breakers> b) { p.dry_breakers = std::move(b); })
        .def_prop_rw(
            "pieces", [](const SamplerParams& p) { return p.pieces; },
            [](SamplerParams& p, std::shared_ptr<TokenPieces> pieces) {
                p.pieces = std::move(pieces);
            })
        .def_rw("bias", &SamplerParams::bias)
        .def(
            "set_engram",
            [](SamplerParams& p, std::vector<std::pair<std::shared_ptr<Engram>, double>> tables,
               double alpha, bool literal, TokenSequence opening, TokenSequence closing) {
                p.engram = {{tables.begin(), tables.end()},
                            alpha,
                            literal,
                            std::move(opening),
                            std::move(closing)};
            },
            nb::arg("tables"), nb::arg("alpha"), nb::arg("literal"), nb::arg("opening"),
            nb::arg("closing"))
        .def_prop_rw(
            "bad_sequences", [](const SamplerParams& p) { return p.bad_sequences; },
            [](SamplerParams& p, std::vector<TokenSequence> sequences) {
                check_sequences(sequences);
                p.bad_sequences = std::move(sequences);
            })
        .def_rw("end_tokens", &SamplerParams::end_tokens)
        .def_rw("forbidden", &SamplerParams::forbidden)
        .def_rw("seed", &SamplerParams::seed)
        .def_rw("logprobs", &SamplerParams::logprobs);
}

void bind_sampler(nb::module_& m) {
    bind_sampler_params(m);
    m.def("sampler_numbers", [] {
        std::vector<std::string> names;
        for (const SamplerNumber& number : kSamplerNumbers) names.emplace_back(number.name);
        return names;
    });
    nb::class_<Sampler>(m, "Sampler",
                        "One request's sampler; see heddle.testing.reference_sampler.")
        .def(nb::init<SamplerParams>(), nb::arg("params"))
        .def_prop_ro("logprobs", [](const Sampler& s) { return s.params().logprobs; })
        .def_prop_rw(
            "mu",
            [](const Sampler& s) {
                return s.params().mirostat ? std::optional<double>(s.mu()) : std::nullopt;
            },
            &Sampler::set_mu, "Mirostat's bound in bits; None without mirostat.")
        .def(
            "allow_only",
            [](Sampler& s, const nb::args& masks) {
                std::vector<Sampler::Mask> copies;
                for (nb::handle mask : masks) {
                    const auto bytes = nb::cast<nb::bytes>(mask);
                    const auto* bits = static_cast<const uint8_t*>(bytes.data());
                    copies.emplace_back(bits, bits + bytes.size());
                }
                s.allow_only(std::move(copies));
            },
            "Tokens t with bit t % 8 of mask[t // 8] may be picked; empty: all. A mask for each "
            "number of guesses.")
        .def("observe_prompt",
             [](Sampler& s, Ints tokens) {
                 s.observe_prompt(tokens.data(), static_cast<int64_t>(tokens.size()));
             })
        .def("observe_output",
             [](Sampler& s, Ints tokens) {
                 for (size_t i = 0; i < tokens.size(); ++i) s.observe_output(tokens.data()[i]);
             })
        .def(
            "pick",
            [](Sampler& s, const std::string& isa, Floats logits) {
                std::vector<float> copy = vector_of(logits);
                return pick_tuple(s.pick(level(isa), copy.data(), static_cast<int>(copy.size())));
            },
            nb::arg("isa"), nb::arg("logits"), "(token, logprob, top) from logits (vocabulary,).");
}

void bind_engram(nb::module_& m) {
    nb::class_<Engram>(m, "Engram", "An open engram; see native/engram.h.")
        .def(
            "__init__",
            [](Engram* self, int file, uint64_t vocabulary) {
                nb::gil_scoped_release release;
                new (self) Engram(file, vocabulary);
            },
            nb::arg("file"), nb::arg("vocabulary") = 0)
        .def_prop_ro("version", [](const Engram& e) { return e.header().version; })
        .def_prop_ro(
            "orders",
            [](const Engram& e) { return nb::make_tuple(e.header().shortest, e.header().longest); })
        .def_prop_ro("entries", [](const Engram& e) { return e.header().entries; })
        .def_prop_ro("vocabulary", [](const Engram& e) { return e.header().vocabulary; })
        .def_prop_ro("fingerprint",
                     [](const Engram& e) { return nb::bytes(e.header().fingerprint.data(), 32); })
        .def_prop_ro("counts",
                     [](const Engram& e) {
                         const Engram::Counts counts = e.counts();
                         return nb::make_tuple(counts.looked_up, counts.filtered, counts.found);
                     })
        .def(
            "predict",
            [](const Engram& e, const std::vector<int>& tokens) {
                std::vector<std::pair<int, double>> pairs;
                for (const Prediction& one : e.predict(tokens.data(), tokens.size())) {
                    pairs.emplace_back(one.token, one.probability);
                }
                return pairs;
            },
            nb::arg("tokens"), "What follows the tokens: (token, probability), falling.");
}

void bind_lookup(nb::module_& m) {
    nb::class_<Lookup>(m, "Lookup", "Guesses tokens by earlier occurrences; see native/lookup.h.")
        .def(nb::init<>())
        .def("append",
             [](Lookup& l, Ints tokens) {
                 l.append(tokens.data(), static_cast<int64_t>(tokens.size()));
             })
        .def("guess", &Lookup::guess, nb::arg("most"))
        .def("__len__", &Lookup::size);
}

using Matrices = std::vector<std::shared_ptr<Matrix>>;

void add_experts(Program& p, int in, int logits, int out, const Matrices& gate, const Matrices& up,
                 const Matrices& down, int used, const std::string& scoring_name, bool normalised,
                 float scale, int groups, int groups_used, Floats selection_bias,
                 const std::string& activation_name, const std::optional<Floats>& expert_scales) {
    auto layer = std::make_shared<ExpertLayer>();
    layer->routing = {static_cast<int>(gate.size()),
                      used,
                      scoring(scoring_name),
                      normalised,
                      scale,
                      groups,
                      groups_used,
                      vector_of(selection_bias),
                      expert_scales ? vector_of(*expert_scales) : std::vector<float>()};
    layer->activation = activation(activation_name);
    layer->gate.assign(gate.begin(), gate.end());
    layer->up.assign(up.begin(), up.end());
    layer->down.assign(down.begin(), down.end());
    p.experts(std::move(layer), in, logits, out);
}

void bind_program(nb::module_& m) {
    nb::class_<Submitted>(m, "Step", "A step that threads compute; dropping it waits for its end.")
        .def("finish", &Submitted::finish,
             "Joins in until the step has ended. Returns (token, logprob, top) per sampler and "
             "(logprob, rank, top) per scored row; None if the step was abandoned.");
    nb::class_<Program>(m, "Program", "A recorded model; see native/program.h.")
        .def(
            "__init__",
            [](Program* self, Runtime& runtime, std::vector<std::shared_ptr<KvCache>> caches,
               int max_tokens, int max_rows) {
                new (self)
                    Program(runtime.pool, runtime.kernels, std::move(caches), max_tokens, max_rows);
            },
            nb::arg("runtime"), nb::arg("caches"), nb::arg("max_tokens"), nb::arg("max_rows"),
            nb::keep_alive<1, 2>(), "`caches`: a KvCache for each group of layers.")
        .def("buffer", &Program::buffer, nb::arg("width"), nb::arg("per_row"))
        .def(
            "rope_table",
            [](Program& p, int dim, bool interleaved, Floats cosine, Floats sine) {
                return p.rope_table({dim, interleaved, vector_of(cosine), vector_of(sine)});
            },
            nb::arg("dim"), nb::arg("interleaved"), nb::arg("cosine"), nb::arg("sine"))
        .def(
            "embed",
            [](Program& p, std::shared_ptr<Matrix> table, int out) {
                p.embed(std::move(table), out);
            },
            nb::arg("table"), nb::arg("out"), "Looks rows up.")
        .def(
            "norm",
            [](Program& p, int in, Floats weight, float eps, int out, bool quantise) {
                p.norm(in, vector_of(weight), eps, out, quantise);
            },
            nb::arg("in_"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"), nb::arg("quantise"))
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
            "gated",
            [](Program& p, int gate, int up, const std::string& name, int out, bool quantise) {
                p.gated(activation(name), gate, up, out, quantise);
            },
            nb::arg("gate"), nb::arg("up"), nb::arg("activation"), nb::arg("out"),
            nb::arg("quantise"))
        .def("experts", &add_experts, nb::arg("in_"), nb::arg("logits"), nb::arg("out"),
             nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::kw_only(), nb::arg("used"),
             nb::arg("scoring"), nb::arg("normalised"), nb::arg("scale"), nb::arg("groups"),
             nb::arg("groups_used"), nb::arg("selection_bias"), nb::arg("activation"),
             nb::arg("expert_scales") = nb::none(),
             "The weighted sum of the experts that `logits` choose; see ExpertSpec.")
        .def(
            "norm_heads",
            [](Program& p, int in, Floats weight, float eps, int heads) {
                p.norm_heads(in, vector_of(weight), eps, heads);
            },
            nb::arg("in_"), nb::arg("weight"), nb::arg("eps"), nb::arg("heads"))
        .def("scale", &Program::scale, nb::arg("in_"), nb::arg("factor"))
        .def("soft_cap", &Program::soft_cap, nb::arg("in_"), nb::arg("cap"))
        .def("rope", &Program::rope, nb::arg("in_"), nb::arg("table"), nb::arg("heads"))
        .def("take_columns", &Program::take_columns, nb::arg("in_"), nb::arg("first"),
             nb::arg("out"))
        .def("store_kv", &Program::store_kv, nb::arg("k"), nb::arg("v"), nb::arg("layer"),
             nb::arg("cache") = 0, "`layer` counts within the cache with index `cache`.")
        .def(
            "attend",
            [](Program& self, int q, int layer, int heads, float scale, int window, int out,
               bool quantise, int cache, bool causal, float soft_cap,
               const std::optional<Floats>& sinks) {
                std::vector<float> scores;
                if (sinks) scores = vector_of(*sinks);
                self.attend({q, layer, cache, heads, scale, window, causal, soft_cap,
                             std::move(scores), out, quantise});
            },
            nb::arg("q"), nb::arg("layer"), nb::arg("heads"), nb::arg("scale"), nb::arg("window"),
            nb::arg("out"), nb::arg("quantise"), nb::arg("cache") = 0, nb::arg("causal") = true,
            nb::arg("soft_cap") = 0.0f, nb::arg("sinks") = nb::none())
        .def("gate_rows", &Program::gate_rows, nb::arg("x"), nb::arg("gate"), nb::arg("out"))
        .def("add", &Program::add, nb::arg("x"), nb::arg("y"), nb::arg("out"))
        .def("take_rows", &Program::take_rows, nb::arg("in_"), nb::arg("out"))
        .def("pool", &Program::pool, nb::arg("states"))
        .def("sample", &Program::sample, nb::arg("logits"))
        .def(
            "begin",
            [](nb::object self, Ints ids, Ints positions, IntRows spans, Ints pages, Ints rows,
               const nb::list& samplers, bool may_sample, std::optional<IntRows> scored,
               std::vector<std::tuple<int, int, Sums>> pooled, const std::vector<int>& guesses) {
                return std::make_unique<Submitted>(
                    std::move(self), std::move(ids), std::move(positions), spans, std::move(pages),
                    rows, samplers, may_sample, scored, std::move(pooled), guesses);
            },
            nb::arg("ids"), nb::arg("positions"), nb::arg("spans"), nb::arg("pages"),
            nb::arg("rows"), nb::arg("samplers"), nb::arg("may_sample") = true,
            nb::arg("scored") = nb::none(), nb::arg("pooled") = nb::make_tuple(),
            nb::arg("guesses") = nb::make_tuple(),
            "Starts a step and returns it. Spans are (first row, tokens, first position) and, for "
            "each cache, (index of the first page in pages, number of that page), scored rows "
            "(row, target, top), pooled ones (first row, rows, sums). A sampler with n guesses has "
            "n + 1 rows.")
        .def("abandon", &Program::abandon,
             "End the step in flight soon and later ones at once, for good. Any thread may call.")
        .def_prop_ro("pooled_width", &Program::pooled_width)
        .def_prop_ro("seconds", &Program::seconds,
                     "Wall time of all steps, as if their callers had joined in at once.")
        .def("copy", &copy_rows, nb::arg("buffer"), nb::arg("rows"))
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

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Heddle's native core.";
    m.def(
        "isa_levels",
        [] {
            std::vector<std::string> names;
            for (const Kernels* k : levels()) names.emplace_back(k->name);
            return names;
        },
        "Instruction levels this machine can run, fastest first.");
    m.def(
        "tensor_types",
        [] {
            nb::list types;
            for (const FormatRow& row : kFormats) {
                types.append(nb::make_tuple(
                    row.name, static_cast<int>(row.format), row.layout.columns(), row.file_bytes,
                    is_quantised(row.format) ? row.layout.super_block() : row.file_bytes,
                    is_quantised(row.format)));
            }
            return types;
        },
        "The tensor types that matmuls read: name, GGUF number, values of a block, its bytes in a "
        "file and in memory, and whether activations are quantised for it.");
    m.def("has_encoder", &has_encoder, nb::arg("file_type"),
          "Whether floats can be quantised to this GGUF tensor type.");
    m.def(
        "quantise",
        [](Runtime& runtime, int type, const Raw& raw, int stored, int rows, int columns,
           Floats importance) {
            const Format from = checked_format(stored, size_of(raw), rows, columns);
            const Format format = format_of(type);
            if (importance.size() != 0 && static_cast<int>(importance.size()) != columns) {
                throw std::invalid_argument("importance is (columns,)");
            }
            const auto bytes = static_cast<size_t>(rows * row_bytes(format, columns));
            auto* out = new uint8_t[bytes];
            nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
            int non_finite;
            {
                nb::gil_scoped_release release;
                non_finite =
                    quantise_rows(runtime.pool, runtime.kernels, format, from, bytes_of(raw), rows,
                                  columns, importance.size() ? importance.data() : nullptr, out);
            }
            using FileRows = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
            return nb::make_tuple(FileRows(out, {bytes}, owner), non_finite);
        },
        nb::arg("runtime"), nb::arg("type"), nb::arg("raw"), nb::arg("stored"), nb::arg("rows"),
        nb::arg("columns"), nb::arg("importance"),
        "Quantise floats of type `stored`. Returns file bytes, and a row that is not finite or "
        "-1.");
    m.def("has_kernel", &has_kernel, nb::arg("file_type"),
          "Whether matmuls read this GGUF tensor type.");
    m.def(
        "uniform",
        [](uint64_t seed, uint32_t index, uint32_t stream) { return uniform(seed, index, stream); },
        nb::arg("seed"), nb::arg("index"), nb::arg("stream") = 0,
        "The random number in [0, 1) of one token; stream 1 is XTC's.");
    bind_storage(m);
    bind_engram(m);
    bind_sampler(m);
    bind_lookup(m);
    bind_program(m);
}
