// One request's sampler: from a row of logits to a token.
//
// What is forbidden is excluded and the bias added, then a chain of stages cuts the candidates
// down, then one counter-based random number chooses. The definition is
// src/heddle/sampling/reference.py; this is the fast version of it. State belongs to the slot's
// sequence alone.
#pragma once

#include <utility>
#include <vector>

#include "samplers.h"

namespace heddle {

struct Pick {
    int token = -1;  // -1: a logit is NaN or infinite
    float logprob = 0.0f;
    std::vector<std::pair<int, float>> top;  // (token, logprob), best first
};

class Sampler {
  public:
    explicit Sampler(SamplerParams params);

    void observe_prompt(const int32_t* tokens, int64_t count);
    void observe_output(int token);

    // Chooses a token and observes it. Overwrites `logits`.
    Pick pick(const Kernels& kernels, float* logits, int vocabulary);

    const SamplerParams& params() const { return params_; }

    // Mirostat's bound on surprise: the one thing that cannot be rebuilt from the tokens.
    double mu() const { return state_.mu; }
    void set_mu(double mu) { state_.mu = mu; }

  private:
    void report(Pick& pick);
    void forbid();

    SamplerParams params_;
    std::vector<Stage> chain_;
    SamplerState state_;
    Candidates candidates_;
};

}  // namespace heddle
