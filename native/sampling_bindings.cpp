// The part of the Python module that chooses tokens: samplers, engram tables, look-up.
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bindings.h"
#include "engram.h"
#include "lookup.h"

namespace heddle {

namespace {

void check_sequences(const std::vector<TokenSequence>& sequences) {
    for (const TokenSequence& sequence : sequences) {
        if (sequence.empty()) throw std::invalid_argument("a token sequence must not be empty");
    }
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
        .def_rw("logprobs", &SamplerParams::logprobs)
        .def_rw("reports_chain", &SamplerParams::reports_chain);
}

void bind_sampler(nb::module_& m) {
    bind_sampler_params(m);
    m.def("sampler_numbers", [] {
        std::vector<std::string> names;
        for (const SamplerNumber& number : kSamplerNumbers) names.emplace_back(number.name);
        return names;
    });
    nb::class_<Sampler>(m, "Sampler",
                        "One request's sampler; see heddle.extensions.reference.sampler.")
        .def(nb::init<SamplerParams>(), nb::arg("params"))
        .def_prop_ro("logprobs", [](const Sampler& s) { return s.params().logprobs; })
        .def_prop_rw(
            "mu",
            [](const Sampler& s) {
                return s.params().mirostat ? std::optional<double>(s.mu()) : std::nullopt;
            },
            &Sampler::set_mu, "Mirostat's bound in bits; None without mirostat.")
        .def(
            "edit",
            [](Sampler& s, const nb::args& edits) {
                std::vector<Sampler::Edit> copies;
                for (nb::handle edit : edits) {
                    const auto [mask, bias] = nb::cast<std::pair<nb::bytes, nb::bytes>>(edit);
                    const auto* bits = static_cast<const uint8_t*>(mask.data());
                    const size_t numbers = bias.size() / sizeof(float);
                    copies.push_back({{bits, bits + mask.size()}, std::vector<float>(numbers)});
                    if (numbers > 0) {
                        std::memcpy(copies.back().bias.data(), bias.data(),
                                    numbers * sizeof(float));
                    }
                }
                s.edit(std::move(copies));
            },
            "Masks and biases of logits, a pair for each number of guesses. Tokens t with bit t % "
            "8 "
            "of mask[t // 8] may be picked; empty: all. The bias is a float32 for each token; "
            "empty: none.")
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

}  // namespace

void bind_sampling(nb::module_& m) {
    bind_engram(m);
    bind_sampler(m);
    bind_lookup(m);
}

}  // namespace heddle
