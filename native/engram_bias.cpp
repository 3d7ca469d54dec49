#include "engram_bias.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace heddle {

namespace {

constexpr double kEpsilon = 1e-10;

bool ends_with(const std::vector<int>& tokens, size_t length, const TokenSequence& mark) {
    return !mark.empty() && mark.size() <= length &&
           std::equal(mark.begin(), mark.end(),
                      tokens.begin() + static_cast<std::ptrdiff_t>(length - mark.size()));
}

}  // namespace

// The last mark decides whether reasoning is open.
void EngramBias::follow_reasoning(const std::vector<int>& tokens) {
    if (settings_.opening.empty()) return;
    while (followed_ < tokens.size()) {
        ++followed_;
        if (ends_with(tokens, followed_, settings_.opening)) reasons_ = true;
        if (ends_with(tokens, followed_, settings_.closing)) reasons_ = false;
    }
}

const std::vector<std::pair<int, float>>& EngramBias::after(const std::vector<int>& tokens) {
    bias_.clear();
    follow_reasoning(tokens);
    if (reasons_) return bias_;
    masses_.clear();
    double weights = 0.0;
    for (const auto& [table, weight] : settings_.tables) {
        const std::vector<Prediction> found = table->predict(tokens.data(), tokens.size());
        if (found.empty()) continue;
        weights += weight;
        for (const Prediction& one : found) {
            masses_.emplace_back(one.token, weight * one.probability);
        }
    }
    // Stable, so that the masses of a token are added in the order of the tables.
    std::stable_sort(masses_.begin(), masses_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const double lift = settings_.literal ? 0.0 : std::log(kEpsilon);
    for (size_t i = 0; i < masses_.size();) {
        const int token = masses_[i].first;
        double mass = 0.0;
        for (; i < masses_.size() && masses_[i].first == token; ++i) mass += masses_[i].second;
        const double score = std::log(mass / weights + kEpsilon) - lift;
        bias_.emplace_back(token, static_cast<float>(settings_.alpha * score));
    }
    return bias_;
}

}  // namespace heddle
