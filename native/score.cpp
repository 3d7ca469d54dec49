#include "score.h"

namespace heddle {

namespace {

int rank_of(const float* logits, int vocabulary, int token) {
    const float own = logits[token];
    int better = 0;
    for (int i = 0; i < token; ++i) better += logits[i] >= own;
    for (int i = token + 1; i < vocabulary; ++i) better += logits[i] > own;
    return better + 1;
}

}  // namespace

Score score_token(Candidates& candidates, const Kernels& kernels, float* logits, int vocabulary,
                  int token, int top) {
    Score score;
    if (!candidates.reset(kernels, logits, vocabulary)) return score;
    const float normaliser = candidates.log_normaliser();
    score.logprob = logits[token] - normaliser;
    score.rank = rank_of(logits, vocabulary, token);
    if (top == 0) return score;
    candidates.show_best(top);
    for (const Candidate& c : candidates.shown()) {
        score.top.emplace_back(c.token, c.logit - normaliser);
    }
    return score;
}

}  // namespace heddle
