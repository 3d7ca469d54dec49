// The bias of engrams on the logits of one sequence. It follows from the sequence's tokens alone.
// The definition is `engram_bias` in src/heddle/testing/reference_sampler.py.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
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

    // The bias of the token after `tokens`, by token. Each call gets the tokens of the call before
    // and perhaps more of them.
    std::unordered_map<int, float> after(const std::vector<int>& tokens);

  private:
    void follow_reasoning(const std::vector<int>& tokens);

    EngramSettings settings_;
    bool reasons_ = false;
    size_t followed_ = 0;  // tokens that `reasons_` covers
};

}  // namespace heddle
