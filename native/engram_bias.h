// The bias of engrams on the logits of one sequence. It follows from the sequence's tokens alone.
// The definition is `engram_bias` in src/heddle/extensions/reference/sampler.py.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engram.h"
#include "history.h"

namespace heddle {

struct EngramSettings {
    std::vector<std::pair<std::shared_ptr<const Engram>, double>> tables;  // and their weights
    double alpha = 0.0;
    bool literal = false;   // alpha * ln(p + eps) in place of the lift
    TokenSequence opening;  // the marks of reasoning, inside which there is no bias; empty: none
    TokenSequence closing;
};

class EngramBias {
  public:
    EngramBias() = default;  // no bias
    explicit EngramBias(EngramSettings settings) : settings_(std::move(settings)) {}

    bool is_on() const { return !settings_.tables.empty(); }

    // Tokens and what to add to their logits after `tokens`, each token once. Each call gets the
    // tokens of the call before and perhaps more of them. The result holds until the next call.
    const std::vector<std::pair<int, float>>& after(const std::vector<int>& tokens);

  private:
    void follow_reasoning(const std::vector<int>& tokens);

    EngramSettings settings_;
    bool reasons_ = false;
    size_t followed_ = 0;                         // tokens that `reasons_` covers
    std::vector<std::pair<int, double>> masses_;  // scratch
    std::vector<std::pair<int, float>> bias_;
};

}  // namespace heddle
