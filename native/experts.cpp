#include "experts.h"

#include <algorithm>
#include <stdexcept>

#include "tiles.h"

namespace heddle {

namespace {

// Reading a panel from memory takes about as long as multiplying it with this many tokens.
constexpr int kPanelCost = 3;

void require(bool good, const char* what) {
    if (!good) throw std::invalid_argument(std::string("experts: ") + what);
}

void check_stack(const std::vector<std::shared_ptr<const Matrix>>& stack, int experts, int rows,
                 int columns) {
    require(static_cast<int>(stack.size()) == experts, "a matrix for each expert");
    for (const auto& matrix : stack) {
        const PackedMatrix& w = matrix->packed();
        require(w.rows == rows && w.columns == columns, "matrices differ in shape");
        require(w.format == stack[0]->packed().format, "matrices differ in type");
    }
}

template <typename T, typename A>
void grow(std::vector<T, A>& values, int64_t size) {
    values.resize(std::max(values.size(), static_cast<size_t>(size)));
}

}  // namespace

void ExpertLayer::check() const {
    const Routing& r = routing;
    require(r.experts >= 1 && r.used >= 1 && r.used <= r.experts, "bad number of experts");
    require(r.groups >= 1 && r.experts % r.groups == 0, "groups must divide the experts");
    require(r.groups_used >= 1 && r.groups_used <= r.groups, "bad number of groups");
    require(r.group_best >= 1, "groups are chosen by one expert at least");
    require(r.groups_used * (r.experts / r.groups) >= r.used, "groups with too few experts");
    require(r.selection_bias.empty() || static_cast<int>(r.selection_bias.size()) == r.experts,
            "a selection bias for each expert");
    require(r.expert_scales.empty() || static_cast<int>(r.expert_scales.size()) == r.experts,
            "a factor for each expert");
    require(!up.empty() && !down.empty(), "no matrices");
    if (gated()) {
        check_stack(gate, r.experts, hidden(), width());
        require(is_quantised(gate[0]->packed().format) == quantised_in(),
                "gate and up must both be quantised, or both be floats");
    }
    check_stack(up, r.experts, hidden(), width());
    check_stack(down, r.experts, width(), hidden());
    require(!quantised_in() || width() % kBlock == 0, "the width is not whole blocks");
    require(!quantised_hidden() || hidden() % kBlock == 0, "the hidden width is not whole blocks");
}

void CodedRows::reserve(int64_t rows, int64_t columns, bool packs) {
    grow(codes, rows * columns);
    grow(scales, rows * (columns / kBlock));
    const auto bytes = static_cast<size_t>(packed_bytes(rows, columns / kBlock));
    if (packs && packed.size() < bytes) packed = MappedArray<uint8_t>(bytes);
}

void ExpertRows::reserve(const ExpertLayer& layer, int tokens, int threads, bool packs) {
    const int64_t rows = int64_t{tokens} * layer.routing.used;
    most_used_ = std::max(most_used_, layer.routing.used);
    const int64_t hidden = rows * layer.hidden();
    grow(chosen, rows);
    grow(chosen_weights, rows);
    grow(tokens_, rows);
    grow(weights_, rows);
    grow(next_, layer.routing.experts);
    grow(gate, hidden);
    grow(up, hidden);
    if (layer.quantised_in()) {
        x_coded.reserve(rows, layer.width(), packs);
    } else {
        grow(x, rows * layer.width());
    }
    if (layer.quantised_hidden()) hidden_coded.reserve(rows, layer.hidden(), packs);
    scratch_.resize(static_cast<size_t>(threads));
    const int64_t results = int64_t{std::min(tokens, kExpertTokens)} * layer.width();
    for (auto& scratch : scratch_)
        grow(scratch, std::max(results, int64_t{2} * layer.routing.experts));
}

void ExpertRows::group(const ExpertLayer& layer, int tokens) {
    const int used = layer.routing.used;
    std::fill(next_.begin(), next_.end(), 0);
    for (int i = 0; i < tokens * used; ++i) ++next_[static_cast<size_t>(chosen[i])];
    groups_.clear();
    costs_.assign(1, 0);
    int first = 0;
    for (int expert = 0; expert < layer.routing.experts; ++expert) {
        int& next = next_[static_cast<size_t>(expert)];
        const int count = next;
        next = first;
        const int pieces = tiles_of(count, kExpertTokens);
        for (int i = 0; i < pieces; ++i) {
            const int begin = tile_begin(count, pieces, i), end = tile_begin(count, pieces, i + 1);
            groups_.push_back({expert, first + begin, end - begin});
            const int64_t of_panel = kPanelCost + end - begin;
            costs_.push_back(costs_.back() + layer.panels_of_input() * of_panel);
        }
        first += count;
    }
    for (int i = 0; i < tokens * used; ++i) {
        const int row = next_[static_cast<size_t>(chosen[i])]++;
        tokens_[static_cast<size_t>(row)] = i / used;
        weights_[static_cast<size_t>(row)] = chosen_weights[static_cast<size_t>(i)];
    }
}

// Rows of one expert are sorted by token, so those of an adapter's tokens lie side by side.
void ExpertRows::find_changed(const std::vector<Adapted>& changes, const ExpertSites& sites) {
    pieces_.clear();
    piece_ends_.assign(1, 0);
    int64_t low = 0;
    for (const ExpertGroup& group : groups_) {
        const auto begin = tokens_.begin() + group.first, end = begin + group.tokens;
        for (const Adapted& change : changes) {
            if (!change.adapter->changes(sites.gate, sites.end)) continue;
            const auto first = std::lower_bound(begin, end, change.row);
            const auto last = std::lower_bound(first, end, change.row + change.tokens);
            if (first == last) continue;
            const int row = static_cast<int>(first - tokens_.begin());
            const int count = static_cast<int>(last - first);
            pieces_.push_back({group.expert, row, count, change.adapter.get(), change.factor, low});
            low += int64_t{count} * change.adapter->rank();
        }
        piece_ends_.push_back(static_cast<int>(pieces_.size()));
    }
}

void ExpertRows::reserve_lows(const std::vector<Adapted>& changes) {
    int64_t floats = 0;
    for (const Adapted& change : changes) {
        floats += int64_t{change.tokens} * most_used_ * change.adapter->rank();
    }
    grow(lows_, floats);
}

PanelPlace ExpertRows::cut(const ExpertLayer& layer, int index, int parts) const {
    const int64_t cost = costs_.back() * index / parts;
    if (index == parts) return {static_cast<int>(groups_.size()), 0};
    const auto after = std::upper_bound(costs_.begin(), costs_.end(), cost);
    const size_t group = static_cast<size_t>(after - costs_.begin()) - 1;
    const int64_t within = cost - costs_[group], whole = costs_[group + 1] - costs_[group];
    const int panels = layer.panels_of_input();
    return {static_cast<int>(group), static_cast<int>(within * panels / whole)};
}

}  // namespace heddle
