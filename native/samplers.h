// The samplers. Each sampler removes candidates or changes their weights. Definitions and sources
// are in src/heddle/extensions/reference/sampler.py. A chain is a list of `Stage`s.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "candidates.h"
#include "engram_bias.h"
#include "history.h"

namespace heddle {

struct SamplerParams;
struct SamplerState;

// A sampler of the chain. samplers.cpp has the table of all samplers.
struct Stage {
    const char* name;  // the value of the member of heddle.sampling_params.Stage
    bool cuts;         // removes candidates; mirostat replaces it, greedy decoding skips it
    bool (*asked)(const SamplerParams&);
    void (*apply)(Candidates&, const SamplerParams&, SamplerState&);
};

// Throws std::invalid_argument for an unknown name.
const Stage* find_stage(const std::string& name);

// Whether a stage has an effect with these parameters.
bool active(const Stage& stage, const SamplerParams& params);

extern const Stage kPenalties;
extern const Stage kMirostat;  // not in the table: it always runs last

// The bytes of all tokens, empty for control tokens, and which tokens end an output.
class TokenPieces {
  public:
    TokenPieces(const std::vector<std::string>& texts, std::vector<int> ends);

    std::string_view text(int token) const;
    bool is_end(int token) const;
    const std::vector<int>& ends() const { return ends_; }  // ascending

  private:
    std::string bytes_;
    std::vector<size_t> begins_;  // start of each token in bytes_, and the end of the last
    std::vector<int> ends_;
};

struct SamplerParams {
    float temperature = 1.0f;  // 0: the best candidate after penalties and DRY
    float dynatemp_range = 0.0f;
    float dynatemp_exponent = 1.0f;
    int top_k = 0;  // 0 or -1 for all
    float top_p = 1.0f;
    float min_p = 0.0f;
    float top_a = 0.0f;
    float typical_p = 1.0f;
    float top_n_sigma = 0.0f;  // 0 or -1 for all
    float xtc_probability = 0.0f;
    float xtc_threshold = 0.1f;
    float repetition_penalty = 1.0f;
    int repeat_last_n = -1;  // -1 for the whole sequence, here and below
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    float dry_multiplier = 0.0f;
    float dry_base = 1.75f;
    int dry_allowed_length = 2;
    int dry_penalty_last_n = -1;
    std::shared_ptr<const Breakers> dry_breakers;
    int mirostat = 0;           // the version, 0 or 2
    float mirostat_tau = 5.0f;  // bits
    float mirostat_eta = 0.1f;
    std::shared_ptr<const TokenPieces> pieces;  // null unless the stage `infill` runs
    std::vector<const Stage*> order;
    std::unordered_map<int, float> bias;
    EngramSettings engram;
    std::vector<TokenSequence> bad_sequences;
    std::vector<int> end_tokens;  // not before min_tokens
    std::vector<int> forbidden;
    int min_tokens = 0;
    uint64_t seed = 0;
    int logprobs = -1;  // alternatives to report; -1 for no logprobs at all
    bool reports_chain =
        false;  // logprobs of the candidates after the chain, not of the raw logits
};

// A numeric parameter of heddle.sampling_params.SamplingParams.
struct SamplerNumber {
    const char* name;
    std::variant<float SamplerParams::*, int SamplerParams::*> member;
};

inline constexpr SamplerNumber kSamplerNumbers[] = {
    {"temperature", &SamplerParams::temperature},
    {"dynatemp_range", &SamplerParams::dynatemp_range},
    {"dynatemp_exponent", &SamplerParams::dynatemp_exponent},
    {"top_k", &SamplerParams::top_k},
    {"top_p", &SamplerParams::top_p},
    {"min_p", &SamplerParams::min_p},
    {"top_a", &SamplerParams::top_a},
    {"typical_p", &SamplerParams::typical_p},
    {"top_n_sigma", &SamplerParams::top_n_sigma},
    {"xtc_probability", &SamplerParams::xtc_probability},
    {"xtc_threshold", &SamplerParams::xtc_threshold},
    {"repetition_penalty", &SamplerParams::repetition_penalty},
    {"repeat_last_n", &SamplerParams::repeat_last_n},
    {"presence_penalty", &SamplerParams::presence_penalty},
    {"frequency_penalty", &SamplerParams::frequency_penalty},
    {"dry_multiplier", &SamplerParams::dry_multiplier},
    {"dry_base", &SamplerParams::dry_base},
    {"dry_allowed_length", &SamplerParams::dry_allowed_length},
    {"dry_penalty_last_n", &SamplerParams::dry_penalty_last_n},
    {"mirostat", &SamplerParams::mirostat},
    {"mirostat_tau", &SamplerParams::mirostat_tau},
    {"mirostat_eta", &SamplerParams::mirostat_eta},
    {"min_tokens", &SamplerParams::min_tokens},
};

// Sets the number `name`. Throws std::invalid_argument for an unknown name.
void set_number(SamplerParams& params, const std::string& name, double value);

// The state that a sequence's samplers keep between tokens, and values that one stage passes to a
// later stage.
struct SamplerState {
    History history;
    double mu;              // mirostat's bound on surprise, in bits
    double log_mass = 0.0;  // natural logarithm of the mass before mirostat's cut
    int end = -1;           // for `infill`: the first end token that is not excluded
};

// Changes mirostat's bound by the surprise of the drawn token.
void adapt_mirostat(const Candidates& candidates, Candidate drawn, const SamplerParams& params,
                    SamplerState& state);

// Philox4x32-10 (Salmon et al. 2011, doi:10.1145/2063384.2063405): the uniform in [0, 1) of token
// `index` under `seed`, the upper 24 bits of the first output word. Stream 0 chooses tokens, and
// stream 1 decides whether XTC applies.
float uniform(uint64_t seed, uint32_t index, uint32_t stream = 0);

}  // namespace heddle
