#include "sampler.h"

#include <cmath>

namespace heddle {

Sampler::Sampler(SamplerParams params)
    : params_(std::move(params)),
      state_{History(active(kPenalties, params_), params_.repeat_last_n),
             2.0 * params_.mirostat_tau},
      engram_(params_.engram) {
    for (const Stage* stage : params_.order) {
        if (active(*stage, params_)) chain_.push_back(stage);
    }
    if (active(kMirostat, params_)) chain_.push_back(&kMirostat);
}

void Sampler::observe_prompt(const int32_t* tokens, int64_t count) {
    state_.history.observe_prompt(tokens, count);
}

void Sampler::observe_output(int token) { state_.history.observe_output(token); }

// Fills pick.top with logits instead of logprobs for now, and pick.logprob with the normaliser.
void Sampler::report(Pick& pick) {
    pick.logprob = candidates_.log_normaliser();
    if (params_.logprobs == 0) return;
    candidates_.show_best(params_.logprobs);
    for (const Candidate& c : candidates_.shown()) pick.top.emplace_back(c.token, c.logit);
}

// Fills pick with logprobs among the candidates that the chain left. At temperature 0, the chosen
// token is the only one.
void Sampler::report_chain(Pick& pick, Candidate chosen) {
    const size_t wanted = static_cast<size_t>(params_.logprobs);
    if (params_.temperature == 0.0f) {
        if (wanted > 0) pick.top.emplace_back(chosen.token, 0.0f);
        return;
    }
    const double log_mass = std::log(candidates_.mass());
    const auto logprob = [&](Candidate c) {
        const double log_weight =
            (static_cast<double>(c.logit) - candidates_.peak()) * candidates_.factor();
        return static_cast<float>(log_weight - log_mass);
    };
    pick.logprob = logprob(chosen);
    if (wanted == 0) return;
    candidates_.show_best(params_.logprobs);
    for (const Candidate& c : candidates_.shown()) {
        if (pick.top.size() == wanted) break;
        pick.top.emplace_back(c.token, logprob(c));
    }
}

// Excludes forbidden tokens, the last tokens of bad sequences, and end tokens before min_tokens.
void Sampler::forbid() {
    candidates_.exclude(params_.forbidden);
    const History& history = state_.history;
    for (const TokenSequence& bad : params_.bad_sequences) {
        if (history.output_ends_with(bad.data(), bad.size() - 1)) candidates_.exclude(bad.back());
    }
    if (static_cast<int64_t>(history.output_tokens()) >= params_.min_tokens) return;
    candidates_.exclude(params_.end_tokens);
}

void Sampler::find_end() {
    state_.end = -1;
    for (int token : params_.pieces->ends()) {
        if (!candidates_.has(token)) continue;
        state_.end = token;
        return;
    }
}

Pick Sampler::pick(const Kernels& kernels, float* logits, int vocabulary, int guesses) {
    Pick result;
    if (!candidates_.reset(kernels, logits, vocabulary)) return result;
    if (reports_raw()) report(result);
    const Edit* edit = edits_.empty() ? nullptr : &edits_[guesses];
    if (edit && !edit->mask.empty()) candidates_.allow_only(edit->mask.data(), edit->mask.size());
    candidates_.edit(params_.bias, [](float logit, float bias) { return logit + bias; });
    if (engram_.is_on()) candidates_.add(engram_.after(state_.history.tokens()));
    if (edit) candidates_.add(edit->bias);
    forbid();
    if (!std::isfinite(candidates_.peak())) {
        result.token = kNothingLeft;
        return result;
    }
    if (params_.pieces) find_end();
    for (const Stage* stage : chain_) stage->apply(candidates_, params_, state_);
    const float number = uniform(params_.seed, state_.history.output_tokens());
    const Candidate chosen =
        params_.temperature == 0.0f ? candidates_.best() : candidates_.draw(number);
    result.token = chosen.token;
    if (reports_raw()) {
        const float normaliser = result.logprob;
        result.logprob = candidates_.raw(chosen.token) - normaliser;
        for (auto& item : result.top) item.second -= normaliser;
    }
    if (reports_chain()) report_chain(result, chosen);
    if (active(kMirostat, params_)) {
        adapt_mirostat(candidates_, chosen, params_, state_);
    }
    observe_output(chosen.token);
    return result;
}

}  // namespace heddle
