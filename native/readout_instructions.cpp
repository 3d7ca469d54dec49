// Instructions for outcomes other than samples: scores of given tokens, sums of hidden states.
#include <algorithm>

#include "instruction.h"
#include "instructions.h"

namespace heddle {

namespace {

class ScoreRows final : public Instruction {
  public:
    explicit ScoreRows(int logits) : Instruction("score"), logits_(logits) {}
    bool in_short_steps() const override { return false; }
    int items(const Program& p) const override {
        return step(p).scored.empty() ? 0 : rows(p, logits_) - first(p);
    }
    void run(Program& p, int item, int thread) override {
        const int i = first(p) + item;
        const size_t index = static_cast<size_t>(first_row(p) + i) - step(p).rows.size();
        const ScoredRow& wanted = step(p).scored[index];
        step(p).scores[index] = score_token(candidates(p, thread), kernels(p), row(p, logits_, i),
                                            width(p, logits_), wanted.target, wanted.top);
    }

  private:
    // The first scored row of this pass; sampled rows come before it.
    static int first(const Program& p) {
        return std::max(static_cast<int>(step(p).rows.size()) - first_row(p), 0);
    }
    int logits_;
};

// One item only, since sums are added in the order of the rows.
class PoolRows final : public Instruction {
  public:
    explicit PoolRows(int states) : Instruction("pool"), states_(states) {}
    bool in_short_steps() const override { return false; }
    int items(const Program& p) const override {
        return first_row(p) >= logit_rows(p) && rows(p, states_) > 0;
    }
    void run(Program& p, int, int) override {
        for (int i = 0; i < rows(p, states_); ++i) {
            double* sum = step(p).pooled[first_row(p) + i - logit_rows(p)].sum;
            const float* state = row(p, states_, i);
            for (int c = 0; c < width(p, states_); ++c) sum[c] += static_cast<double>(state[c]);
        }
    }

  private:
    static int logit_rows(const Program& p) {
        return static_cast<int>(step(p).rows.size() + step(p).scored.size());
    }
    int states_;
};

}  // namespace

InstructionPointer make_score(int logits) { return std::make_unique<ScoreRows>(logits); }

InstructionPointer make_pool(int states) { return std::make_unique<PoolRows>(states); }

}  // namespace heddle
