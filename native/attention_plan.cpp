#include "attention_plan.h"

#include <algorithm>

#include "kernels.h"

namespace heddle {

namespace {

// Query tokens per attention item; bounds the imbalance between threads on long prompts.
constexpr int kAttendTokens = 16;
// Below this many attention items per thread, long contexts are split.
constexpr int kFewItems = 4;

}  // namespace

void AttentionPlan::cut(const Step& step, int group) {
    items_.clear();
    merges_.clear();
    parts_ = 0;
    if (worth_splitting(step, group)) return split(step);
    for (size_t i = 0; i < step.spans.size(); ++i) {
        for (int first = 0; first < step.spans[i].tokens; first += kAttendTokens) {
            const int tokens = std::min(kAttendTokens, step.spans[i].tokens - first);
            for (int head = 0; head < kv_heads_; ++head) {
                items_.push_back({static_cast<int>(i), first, tokens, head, -1, 0});
            }
        }
    }
}

// Whether a step is so few single tokens with contexts so long that threads would stand idle.
bool AttentionPlan::worth_splitting(const Step& step, int group) const {
    const int items = static_cast<int>(step.spans.size()) * kv_heads_;
    if (items >= threads_ * kFewItems || group > kAttendQueries) return false;
    bool several = false;
    for (const Span& span : step.spans) {
        if (span.tokens != 1) return false;
        several |= span.first_position >= kSplitTokens;
    }
    return several;
}

void AttentionPlan::split(const Step& step) {
    for (size_t i = 0; i < step.spans.size(); ++i) {
        const int splits = step.spans[i].first_position / kSplitTokens + 1;
        for (int head = 0; head < kv_heads_; ++head, parts_ += splits) {
            const int span = static_cast<int>(i);
            for (int split = 0; split < splits; ++split) {
                items_.push_back({span, 0, 1, head, split, parts_});
            }
            merges_.push_back({span, 0, 1, head, -1, parts_});
        }
    }
}

}  // namespace heddle
