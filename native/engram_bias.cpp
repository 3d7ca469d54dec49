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

std::unordered_map<int, float> EngramBias::after(const std::vector<int>& tokens) {
    follow_reasoning(tokens);
    if (reasons_) return {};
    std::unordered_map<int, double> merged;
    double weights = 0.0;
    for (const auto& [table, weight] : settings_.tables) {
        const std::vector<Prediction> found = table->predict(tokens.data(), tokens.size());
        if (found.empty()) continue;
        weights += weight;
        for (const Prediction& one : found) merged[one.token] += weight * one.probability;
    }
    std::unordered_map<int, float> bias;
    const double lift = settings_.literal ? 0.0 : std::log(kEpsilon);
    for (const auto& [token, mass] : merged) {
        const double score = std::log(mass / weights + kEpsilon) - lift;
        bias[token] = static_cast<float>(settings_.alpha * score);
    }
    return bias;
}

}  // namespace heddle
