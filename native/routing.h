// Chooses the experts of a token, and their weights.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace heddle {

// How router logits become scores. kSoftmaxOfChosen and kSparsemixer choose by the logits. The
// weights are the softmax over the chosen experts, or each is the share of an expert among those
// near it that are left.
enum class Scoring { kSoftmax, kSoftmaxOfChosen, kSigmoid, kSqrtSoftplus, kSparsemixer };

// See ExpertSpec in src/heddle/models/ops.py.
struct Routing {
    int experts;
    int used;
    Scoring scoring;
    bool normalised;
    float scale;
    int groups;
    int groups_used;
    int group_best;
    std::vector<float> selection_bias;  // (experts,) or empty
    std::vector<float> expert_scales;   // (experts,) or empty
};

// Chooses `used` experts by `logits` (experts,), and writes them in ascending order, with their
// weights. Equal scores prefer the lower index. NaN logits give valid experts with NaN weights.
// `scratch` is (2 * experts,).
void route(const Kernels& kernels, const Routing& routing, const float* logits, float* scratch,
           int32_t* chosen, float* weights);

}  // namespace heddle
