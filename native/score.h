// The score of one token in a row of logits, under the model's raw distribution.
#pragma once

#include <utility>
#include <vector>

#include "candidates.h"

namespace heddle {

struct Score {
    float logprob = 0.0f;
    int rank = 0;  // 1 for the likeliest token, ties to the lower one; 0: a logit is not finite
    std::vector<std::pair<int, float>> top;  // (token, logprob), best first
};

// The score of `token`, with `top` of the likeliest tokens. Gives the same bits as a sampler
// reports. `candidates` is scratch.
Score score_token(Candidates& candidates, const Kernels& kernels, float* logits, int vocabulary,
                  int token, int top);

}  // namespace heddle
