// One request's sampler: penalties, bias, truncation, one counter-based random draw per token.
//
// The chain and its tie rules are defined in src/heddle/sampling/reference.py; this is the fast
// version of it. State belongs to the slot's sequence alone and is rebuilt from its tokens.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels.h"

namespace heddle {

struct SamplerParams {
    float temperature = 1.0f;
    int top_k = 0;
    float top_p = 1.0f;
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    uint64_t seed = 0;
    int logprobs = -1;  // alternatives to report; -1 for no logprobs at all
    std::vector<std::pair<int, float>> bias;
};

struct Candidate {
    float logit;
    int token;
};

struct Pick {
    int token = -1;  // -1: a logit is NaN or infinite
    float logprob = 0.0f;
    std::vector<std::pair<int, float>> top;  // (token, logprob), best first
};

class Sampler {
  public:
    explicit Sampler(SamplerParams params) : params_(std::move(params)) {}

    void observe_prompt(const int32_t* tokens, int64_t count);
    void observe_output(int token);

    // Chooses a token and observes it. Overwrites `logits`.
    Pick pick(const Kernels& kernels, float* logits, int vocabulary);

    const SamplerParams& params() const { return params_; }

  private:
    bool penalised() const;
    bool truncated() const;
    void report(const Kernels& kernels, const float* logits, int vocabulary, Pick& pick);
    void adjust(float* logits, int vocabulary) const;
    int draw_full(const Kernels& kernels, const float* logits, int vocabulary, float peak);
    int draw_truncated(const Kernels& kernels, const float* logits, int vocabulary, float peak);
    void shortlist(const Kernels& kernels, const float* logits, int vocabulary, float peak);
    double total_mass(const Kernels& kernels, const float* logits, int vocabulary,
                      float peak) const;
    double weigh(const Kernels& kernels, float peak, float factor);
    bool reaches_far_enough(const Kernels& kernels, double mass, int vocabulary, float peak);
    void keep_top_k();
    void keep_top_p(double mass);

    SamplerParams params_;
    uint32_t generated_ = 0;
    std::unordered_map<int, int> seen_;  // token -> occurrences in the output; prompt adds 0
    std::vector<Candidate> candidates_;  // scratch
    std::vector<float> weights_;         // scratch
};

// Philox4x32-10 (Salmon et al. 2011, doi:10.1145/2063384.2063405): the uniform in [0, 1) of draw
// `index` under `seed`, the upper 24 bits of the first output word.
float uniform(uint64_t seed, uint32_t index);

}  // namespace heddle
