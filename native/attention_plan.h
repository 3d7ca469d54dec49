// Cuts a step's attention into items for the threads. One plan serves all layers with as many
// groups of query heads. The heads of a group read the same keys: those of one key/value head, or
// latents.
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

// The tokens of a step by the pages that they go into.
class StorePlan {
  public:
    void cut(const Step& step);
    const std::vector<StoreItem>& items() const { return items_; }

  private:
    std::vector<StoreItem> items_;
};

// The query heads that are handled together where all heads read the same latents: a divisor of
// `heads`. As many as an item has registers for, so that short contexts give several items.
int latent_group(int heads);

// One thread's share of attention: some query tokens of a span, one group of heads.
struct AttendItem {
    int span;
    int first_token;  // within the span
    int tokens;
    int group;
    int split;  // the split of positions it computes; -1 for all of them
    int parts;  // index in the plan's parts at which the first split of its query begins
};

class AttentionPlan {
  public:
    AttentionPlan(int groups, int threads) : groups_(groups), threads_(threads) {}

    int groups() const { return groups_; }
    // Makes room for a layer with `heads` query heads in a group, and values of `value_dim`
    // elements.
    void admit(int heads, int value_dim);
    void cut(const Step& step);

    const std::vector<AttendItem>& items() const { return items_; }
    // Queries whose splits are merged afterwards.
    const std::vector<AttendItem>& merges() const { return merges_; }
    // Floats of the running sums of all splits.
    int64_t part_floats() const;

  private:
    void cut_tokens(const Span& span, int index);
    void split(const Span& span, int index);

    int groups_, threads_;
    int heads_ = 1, value_dim_ = 1;  // the largest of any layer
    std::vector<AttendItem> items_, merges_;
    int parts_ = 0;  // running sums
};

}  // namespace heddle
