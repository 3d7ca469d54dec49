// Cuts a step's attention into items for the threads. One plan serves all layers with as many
// key/value heads.
#pragma once

#include <vector>

#include "step.h"

namespace heddle {

// Tokens of a span that go into one page.
struct StoreItem {
    int span;
    int first_token;  // within the span
    int tokens;
};

// One thread's share of attention: some query tokens of a span, one key/value head.
struct AttendItem {
    int span;
    int first_token;  // within the span
    int tokens;
    int head;
    int split;  // the split of positions it computes; -1 for all of them
    int parts;  // index in the plan's parts at which the first split of its query begins
};

class AttentionPlan {
  public:
    AttentionPlan(int kv_heads, int threads) : kv_heads_(kv_heads), threads_(threads) {}

    int kv_heads() const { return kv_heads_; }
    // Makes room for a layer with `group` query heads per key/value head, of `head_dim` elements.
    void admit(int group, int head_dim);
    void cut(const Step& step);

    const std::vector<StoreItem>& stores() const { return stores_; }
    const std::vector<AttendItem>& items() const { return items_; }
    // Queries whose splits are merged afterwards.
    const std::vector<AttendItem>& merges() const { return merges_; }
    // Floats of the running sums of all splits.
    int64_t part_floats() const;

  private:
    void cut_stores(const Span& span, int index);
    void cut_tokens(const Span& span, int index);
    void split(const Span& span, int index);

    int kv_heads_, threads_;
    int group_ = 1, head_dim_ = 1;  // the largest of any layer
    std::vector<StoreItem> stores_;
    std::vector<AttendItem> items_, merges_;
    int parts_ = 0;  // running sums
};

}  // namespace heddle
