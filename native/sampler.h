// One request's sampler: from a row of logits to a token.
//
// The sampler excludes tokens that a grammar's mask or a rule forbids, and adds the biases. Then a
// chain of stages removes candidates, and one counter-based random number chooses among the rest.
// The definition is src/heddle/extensions/reference/sampler.py; this is its fast version. State
// belongs to the slot's sequence alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "samplers.h"

namespace heddle {

constexpr int kNotFinite = -1;    // in place of a token: a logit is NaN or infinite
constexpr int kNothingLeft = -2;  // all tokens are forbidden

struct Pick {
    int token = kNotFinite;
    float logprob = 0.0f;
    std::vector<std::pair<int, float>> top;  // (token, logprob), best first
};

class Sampler {
  public:
    explicit Sampler(SamplerParams params);

    void observe_prompt(const int32_t* tokens, int64_t count);
    void observe_output(int token);

    // What a grammar and logits processors do to the logits of one pick.
    struct Edit {
        std::vector<uint8_t> mask;  // see Candidates::allow_only; empty: all tokens are allowed
        std::vector<float> bias;    // see Candidates::add; empty: none
    };

    // Sets the edits from now on. Edit i is for the pick after i guesses; without edits, all picks
    // are allowed.
    void edit(std::vector<Edit> edits) { edits_ = std::move(edits); }

    // Whether a token can be picked after `guesses` guesses.
    bool may_pick(int guesses) const {
        return edits_.empty() || static_cast<size_t>(guesses) < edits_.size();
    }

    // Chooses a token and observes it. Overwrites `logits`. Requires may_pick(guesses).
    Pick pick(const Kernels& kernels, float* logits, int vocabulary, int guesses = 0);

    const SamplerParams& params() const { return params_; }

    // Mirostat's bound on surprise, the only state that cannot be rebuilt from the tokens.
    double mu() const { return state_.mu; }
    void set_mu(double mu) { state_.mu = mu; }

  private:
    bool reports_raw() const { return params_.logprobs >= 0 && !params_.reports_chain; }
    bool reports_chain() const { return params_.logprobs >= 0 && params_.reports_chain; }
    void report(Pick& pick);
    void report_chain(Pick& pick, Candidate chosen);
    void forbid();
    void find_end();

    SamplerParams params_;
    std::vector<const Stage*> chain_;
    SamplerState state_;
    EngramBias engram_;
    std::vector<Edit> edits_;
    Candidates candidates_;
};

}  // namespace heddle
