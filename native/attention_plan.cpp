#include "attention_plan.h"

#include <algorithm>

#include "kernels.h"

namespace heddle {

namespace {

// Query tokens per attention item. More query tokens share one reading of a page; fewer tokens keep
// the threads' shares equal. The plan halves the number, down to the least, until each thread has
// kItemsEach items.
constexpr int kAttendTokens = 16, kLeastAttendTokens = 4;
constexpr int kItemsEach = 3;
// A context is split if it is more than this part of a thread's share of the step.
constexpr int kShareParts = 4;
// Query heads in a group of those that read the same latents, at most.
constexpr int kLatentHeads = 8;

int64_t pages_of(const Span& span) {
    return (span.first_position + span.tokens - 1) / kPageTokens + 1;
}

}  // namespace

void StorePlan::cut(const Step& step) {
    items_.clear();
    for (size_t i = 0; i < step.spans.size(); ++i) {
        const Span& span = step.spans[i];
        for (int first = 0; first < span.tokens;) {
            const int room = kPageTokens - (span.first_position + first) % kPageTokens;
            const int tokens = std::min(room, span.tokens - first);
            items_.push_back({static_cast<int>(i), first, tokens});
            first += tokens;
        }
    }
}

int latent_group(int heads) {
    int group = kLatentHeads;
    while (heads % group != 0) --group;
    return group;
}

void AttentionPlan::admit(int heads, int value_dim) {
    heads_ = std::max(heads_, heads);
    value_dim_ = std::max(value_dim_, value_dim);
}

int64_t AttentionPlan::part_floats() const { return parts_ * attend_part(heads_, value_dim_); }

void AttentionPlan::cut(const Step& step) {
    items_.clear();
    merges_.clear();
    parts_ = 0;
    int64_t work = 0;  // pages, for each token and group that reads them
    for (const Span& span : step.spans) work += span.tokens * pages_of(span) * groups_;
    for (size_t i = 0; i < step.spans.size(); ++i) {
        const Span& span = step.spans[i];
        const int index = static_cast<int>(i);
        const bool single = span.tokens == 1 && heads_ <= kAttendQueries;
        const bool large = pages_of(span) * kShareParts * threads_ > work;
        if (threads_ > 1 && single && large && span.first_position >= kSplitTokens) {
            split(span, index);
        } else {
            cut_tokens(span, index);
        }
    }
}

void AttentionPlan::cut_tokens(const Span& span, int index) {
    const auto items = [&](int each) { return (span.tokens + each - 1) / each * groups_; };
    int each = kAttendTokens;
    while (each > kLeastAttendTokens && items(each) < kItemsEach * threads_) each /= 2;
    for (int first = 0; first < span.tokens; first += each) {
        const int tokens = std::min(each, span.tokens - first);
        for (int group = 0; group < groups_; ++group) {
            items_.push_back({index, first, tokens, group, -1, 0});
        }
    }
}

void AttentionPlan::split(const Span& span, int index) {
    const int splits = span.first_position / kSplitTokens + 1;
    for (int group = 0; group < groups_; ++group, parts_ += splits) {
        for (int split = 0; split < splits; ++split) {
            items_.push_back({index, 0, 1, group, split, parts_});
        }
        merges_.push_back({index, 0, 1, group, -1, parts_});
    }
}

}  // namespace heddle
