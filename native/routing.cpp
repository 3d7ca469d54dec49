#include "routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// DeepSeek-V3 and V4 add this to the sum of scores before they divide by the sum.
constexpr float kSumFloor = 1e-20f;
// An expert is near another whose logit is at most this share higher. PhiMoE's jitter is half of
// it.
constexpr float kSparsemixerDistance = 0.02f;

// The highest `used` of n values, highest first; among equal values, the lower index first. A
// chosen NaN is never replaced, so that it reaches the weights.
void choose(const float* values, int n, int used, int32_t* chosen) {
    for (int i = 0; i < n; ++i) {
        int at = std::min(i, used);
        if (at == used && !(values[i] > values[chosen[used - 1]])) continue;
        for (at = std::min(at, used - 1); at > 0 && values[i] > values[chosen[at - 1]]; --at) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = i;
    }
}

void score(const Kernels& kernels, const Routing& routing, const float* logits, float* scores) {
    const int n = routing.experts;
    if (routing.scoring == Scoring::kSoftmaxOfChosen || routing.scoring == Scoring::kSparsemixer) {
        std::copy(logits, logits + n, scores);
    } else if (routing.scoring == Scoring::kSigmoid) {
        kernels.exp_all(logits, n, 0.0f, -1.0f, scores);
        for (int i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + scores[i]);
    } else if (routing.scoring == Scoring::kSqrtSoftplus) {
        const std::vector<float> no_bias(static_cast<size_t>(n));
        kernels.step_size(logits, no_bias.data(), n, 0.0f, std::numeric_limits<float>::max(),
                          scores);
        for (int i = 0; i < n; ++i) scores[i] = std::sqrt(scores[i]);
    } else {
        const float peak = kernels.max(logits, n);
        const float sum = kernels.sum_exp(logits, n, peak, 1.0f);
        kernels.exp_all(logits, n, peak, 1.0f, scores);
        for (int i = 0; i < n; ++i) scores[i] /= sum;
    }
}

// Keeps the groups whose best experts have the highest sums. The others get the lowest value.
void mask_groups(const Routing& routing, float* values) {
    if (routing.groups_used == routing.groups) return;
    const int size = routing.experts / routing.groups;
    const int counted = std::min(size, routing.group_best);
    std::vector<int32_t> best(static_cast<size_t>(counted));
    std::vector<float> sums;
    for (int group = 0; group < routing.groups; ++group) {
        const float* of_group = values + group * size;
        choose(of_group, size, counted, best.data());
        float sum = of_group[best[0]];
        for (int i = 1; i < counted; ++i) sum += of_group[best[static_cast<size_t>(i)]];
        sums.push_back(sum);
    }
    std::vector<int32_t> kept(static_cast<size_t>(routing.groups_used));
    choose(sums.data(), routing.groups, routing.groups_used, kept.data());
    for (int group = 0; group < routing.groups; ++group) {
        if (std::find(kept.begin(), kept.end(), group) != kept.end()) continue;
        std::fill(values + group * size, values + (group + 1) * size, kLowest);
    }
}

// The score of each of the `chosen`, highest first, becomes its share among the experts that are
// left: a softmax over those whose logits are near its own. `left` is (experts,).
void share_with_near(const Kernels& kernels, const Routing& routing, const float* logits,
                     const int32_t* chosen, float* left, float* scores) {
    const int n = routing.experts;
    for (int i = 0; i < routing.used; ++i) {
        const float best = logits[chosen[i]];
        for (int expert = 0; expert < n; ++expert) {
            const float size = std::max(std::abs(logits[expert]), best);
            const bool is_far = (best - logits[expert]) / size > kSparsemixerDistance;
            left[expert] = is_far ? kLowest : logits[expert];
        }
        for (int before = 0; before < i; ++before) left[chosen[before]] = kLowest;
        scores[chosen[i]] = 1.0f / kernels.sum_exp(left, n, best, 1.0f);
    }
}

void weigh(const Kernels& kernels, const Routing& routing, float* weights) {
    const int used = routing.used;
    float divisor = 1.0f;
    if (routing.scoring == Scoring::kSoftmaxOfChosen) {
        const float peak = kernels.max(weights, used);
        divisor = kernels.sum_exp(weights, used, peak, 1.0f);
        kernels.exp_all(weights, used, peak, 1.0f, weights);
    } else if (routing.normalised) {
        divisor = routing.scoring == Scoring::kSoftmax ? 0.0f : kSumFloor;
        for (int i = 0; i < used; ++i) divisor += weights[i];
    }
    for (int i = 0; i < used; ++i) weights[i] = weights[i] / divisor * routing.scale;
}

}  // namespace

void route(const Kernels& kernels, const Routing& routing, const float* logits, float* scratch,
           int32_t* chosen, float* weights) {
    float* scores = scratch;
    float* values = scratch + routing.experts;
    score(kernels, routing, logits, scores);
    std::copy(scores, scores + routing.experts, values);
    if (!routing.selection_bias.empty()) {
        kernels.add(scores, routing.selection_bias.data(), routing.experts, values);
    }
    mask_groups(routing, values);
    choose(values, routing.experts, routing.used, chosen);
    if (routing.scoring == Scoring::kSparsemixer) {
        share_with_near(kernels, routing, logits, chosen, values, scores);
    }
    std::sort(chosen, chosen + routing.used);
    for (int i = 0; i < routing.used; ++i) weights[i] = scores[chosen[i]];
    weigh(kernels, routing, weights);
    if (routing.expert_scales.empty()) return;
    for (int i = 0; i < routing.used; ++i) weights[i] *= routing.expert_scales[chosen[i]];
}

}  // namespace heddle
