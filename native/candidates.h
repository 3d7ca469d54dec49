// The candidates: tokens that a chain of samplers has not removed.
//
// Before the first cut, the candidates are the row of logits itself. Maxima of blocks show where
// the best candidates are, so no sampler sorts a vocabulary of 152,000. After the first cut, the
// candidates are a list, best first. Weights are unnormalised probabilities: exp((logit - peak) *
// factor). The factor is 1 / (the temperature applied so far).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels.h"

namespace heddle {

struct Candidate {
    float logit;
    int token;
};

// The order of candidates: by logit, ties to the lower token.
inline bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

class Candidates {
  public:
    // Starts with all tokens of `logits` (vocabulary,). Edits `logits` in place until the next
    // call. False if a logit is NaN or infinite.
    bool reset(const Kernels& kernels, float* logits, int vocabulary);

    // --- reading ------------------------------------------------------------------------------

    bool listed() const { return listed_; }  // after the first cut
    int size() const;                        // number of candidates
    float factor() const { return factor_; }
    float peak() const { return peak_; }  // the highest logit; -inf without candidates
    double mass();                        // sum of all weights
    float log_normaliser();               // log(sum(exp(logit))), before any change
    double entropy();                     // of the probabilities, in nats
    float raw(int token) const;           // the logit that `reset` got
    bool has(int token) const;            // whether it is a candidate. Call before the first cut
    Candidate best() const;

    // The best candidates, best first, and their weights: as many as the last `show_*` requested,
    // or all.
    const std::vector<Candidate>& shown() const { return list_; }
    const std::vector<float>& weights();
    void show_best(int count);     // the best `count`
    void show_above(float logit);  // all with at least this logit
    void show_mass(double mass);   // enough that their weights exceed this mass

    // Calls f(logit, weight, token) for all candidates, in any order.
    template <typename F>
    void each(F f);
    // Calls f(logit) for all candidates, in any order.
    template <typename F>
    void each_logit(F f) const;

    // --- changing -----------------------------------------------------------------------------

    // Sets logit = f(logit, entry) for every entry of a map with tokens as keys. The logits include
    // the temperature applied so far.
    template <typename Map, typename F>
    void edit(const Map& by_token, F f);
    // Adds to the logits of tokens, each of which is given once. Call before the first cut.
    void add(const std::vector<std::pair<int, float>>& biases);
    // Adds bias[t] to the logit of each token t below its size; -inf excludes a token.
    void add(const std::vector<float>& bias);
    void exclude(int token);                       // before the first cut
    void exclude(const std::vector<int>& tokens);  // also fast for most of a vocabulary
    // Excludes all tokens t whose bit t % 8 of mask[t / 8] is 0. Call right after `reset`.
    void allow_only(const uint8_t* mask, size_t bytes);
    void cool(float temperature);                // > 0
    void cut(size_t count);                      // keeps the best `count` of the shown
    void drop_best(size_t count);                // of the shown candidates
    void keep(const std::vector<bool>& chosen);  // of the shown candidates, at least one
    void keep_only(int token);                   // even if it is not a candidate

    // --- choosing -----------------------------------------------------------------------------

    // The first candidate whose cumulative weight exceeds `uniform` of the sum. The order is best
    // first after a cut, else by token.
    Candidate draw(float uniform);

  private:
    static constexpr int kPeakBlock = 256;   // logits per block; low blocks are skipped
    static constexpr int kMassBlock = 1024;  // logits per sum

    template <typename F>
    void each_above(float floor, F f) const;
    void collect(float floor);
    void sort_list();
    void put(int token, float logit);
    void find_peak();
    void weigh(const float* logits, int count);
    Candidate draw_listed(float uniform);
    Candidate draw_unlisted(float uniform);

    const Kernels* kernels_ = nullptr;
    float* logits_ = nullptr;
    int vocabulary_ = 0;
    int excluded_ = 0;  // number of logits of -inf, which are not candidates
    float peak_ = 0.0f;
    float factor_ = 1.0f;
    bool listed_ = false;
    std::vector<float> block_peaks_;
    std::vector<Candidate> list_;
    std::vector<Candidate> other_list_;  // scratch
    std::vector<Candidate> before_;      // logits before the edits, in the order of the edits
    std::vector<float> weights_;         // scratch
    std::vector<float> masses_;          // scratch
};

template <typename F>
void Candidates::each(F f) {
    if (listed_) {
        weights();
        for (size_t i = 0; i < list_.size(); ++i) f(list_[i].logit, weights_[i], list_[i].token);
        return;
    }
    for (int first = 0; first < vocabulary_; first += kMassBlock) {
        const int count = std::min(kMassBlock, vocabulary_ - first);
        weigh(logits_ + first, count);
        for (int i = 0; i < count; ++i) {
            if (logits_[first + i] > -INFINITY) f(logits_[first + i], weights_[i], first + i);
        }
    }
}

template <typename F>
void Candidates::each_logit(F f) const {
    if (listed_) {
        for (const Candidate& c : list_) f(c.logit);
        return;
    }
    for (int i = 0; i < vocabulary_; ++i) {
        if (logits_[i] > -INFINITY) f(logits_[i]);
    }
}

template <typename Map, typename F>
void Candidates::edit(const Map& by_token, F f) {
    const auto scaled = [&](float logit, const auto& entry) {
        if (logit == -INFINITY) return logit;  // excluded
        return std::clamp(f(logit * factor_, entry) / factor_, -FLT_MAX, FLT_MAX);
    };
    if (listed_) {
        for (Candidate& c : list_) {
            const auto found = by_token.find(c.token);
            if (found != by_token.end()) c.logit = scaled(c.logit, found->second);
        }
        std::sort(list_.begin(), list_.end(), better);
        peak_ = list_.front().logit;
        return;
    }
    for (const auto& [token, entry] : by_token) {
        if (token < vocabulary_) put(token, scaled(logits_[token], entry));
    }
    find_peak();
}

}  // namespace heddle
