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

int64_t pages_of(const Span& span) {
    return (span.first_position + span.tokens - 1) / kPageTokens + 1;
}

}  // namespace

void AttentionPlan::admit(int group, int head_dim) {
    group_ = std::max(group_, group);
    head_dim_ = std::max(head_dim_, head_dim);
}

int64_t AttentionPlan::part_floats() const { return parts_ * attend_part(group_, head_dim_); }

void AttentionPlan::cut(const Step& step) {
    stores_.clear();
    items_.clear();
    merges_.clear();
    parts_ = 0;
    int64_t work = 0;  // pages, for each token and head that reads them
    for (const Span& span : step.spans) work += span.tokens * pages_of(span) * kv_heads_;
    for (size_t i = 0; i < step.spans.size(); ++i) {
        const Span& span = step.spans[i];
        const int index = static_cast<int>(i);
        cut_stores(span, index);
        const bool single = span.tokens == 1 && group_ <= kAttendQueries;
        const bool large = pages_of(span) * kShareParts * threads_ > work;
        if (threads_ > 1 && single && large && span.first_position >= kSplitTokens) {
            split(span, index);
        } else {
            cut_tokens(span, index);
        }
    }
}

void AttentionPlan::cut_stores(const Span& span, int index) {
    for (int first = 0; first < span.tokens;) {
        const int room = kPageTokens - (span.first_position + first) % kPageTokens;
        const int tokens = std::min(room, span.tokens - first);
        stores_.push_back({index, first, tokens});
        first += tokens;
    }
}

void AttentionPlan::cut_tokens(const Span& span, int index) {
    const auto items = [&](int each) { return (span.tokens + each - 1) / each * kv_heads_; };
    int each = kAttendTokens;
    while (each > kLeastAttendTokens && items(each) < kItemsEach * threads_) each /= 2;
    for (int first = 0; first < span.tokens; first += each) {
        const int tokens = std::min(each, span.tokens - first);
        for (int head = 0; head < kv_heads_; ++head) {
            items_.push_back({index, first, tokens, head, -1, 0});
        }
    }
}

void AttentionPlan::split(const Span& span, int index) {
    const int splits = span.first_position / kSplitTokens + 1;
    for (int head = 0; head < kv_heads_; ++head, parts_ += splits) {
        for (int split = 0; split < splits; ++split) {
            items_.push_back({index, 0, 1, head, split, parts_});
        }
        merges_.push_back({index, 0, 1, head, -1, parts_});
    }
}

}  // namespace heddle
