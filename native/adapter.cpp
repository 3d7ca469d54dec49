#include "adapter.h"

#include <algorithm>
#include <stdexcept>

namespace heddle {

Adapter::Adapter(int64_t program, std::vector<LowRank> changes)
    : program_(program), changes_(std::move(changes)), counts_(1, 0) {
    for (const LowRank& change : changes_) {
        counts_.push_back(counts_.back() + (change.a != nullptr));
        if (change.b != nullptr) rank_ = std::max(rank_, change.b->packed().columns);
    }
}

int64_t Adapter::bytes() const {
    int64_t sum = 0;
    for (const LowRank& change : changes_) {
        if (change.a != nullptr) sum += change.a->bytes();
        if (change.b != nullptr) sum += change.b->bytes();
        sum += static_cast<int64_t>(change.gains.size() * sizeof(float));
    }
    return sum;
}

void AdapterPlan::cut(const std::vector<Adapted>& changes) {
    pieces_.clear();
    for (const Adapted& change : changes) add(pieces_, change, change.row, change.tokens);
    lows_.resize(static_cast<size_t>(place(pieces_)));
}

void AdapterPlan::cut_wanted(const std::vector<Adapted>& changes, const int32_t* wanted,
                             int count) {
    wanted_pieces_.clear();
    for (const Adapted& change : changes) {
        const auto is_changed = [&](int i) {
            return i < count && wanted[i] >= change.row && wanted[i] < change.row + change.tokens;
        };
        for (int i = 0; i < count; ++i) {
            const int first = i;
            while (is_changed(i)) ++i;
            if (i > first) add(wanted_pieces_, change, first, i - first);
        }
    }
    const auto floats = static_cast<size_t>(place(wanted_pieces_));
    if (floats > lows_.size()) lows_.resize(floats);
}

// Rows of sequences side by side that have the same adapter share the reading of its matrices.
void AdapterPlan::add(std::vector<AdaptedRows>& pieces, const Adapted& change, int row,
                      int tokens) {
    for (const int end = row + tokens; row < end;) {
        AdaptedRows* last = pieces.empty() ? nullptr : &pieces.back();
        const bool continues = last != nullptr && last->adapter == change.adapter.get() &&
                               last->factor == change.factor && last->row + last->tokens == row &&
                               last->tokens < kPieceRows;
        if (!continues) {
            pieces.push_back({change.adapter.get(), change.factor, row, 0, 0});
            last = &pieces.back();
        }
        const int count = std::min(end - row, kPieceRows - last->tokens);
        last->tokens += count;
        row += count;
    }
}

// Gives the pieces their places. Returns how many floats they take.
int64_t AdapterPlan::place(std::vector<AdaptedRows>& pieces) const {
    int64_t floats = 0;
    for (AdaptedRows& piece : pieces) {
        piece.low = floats;
        floats += int64_t{parts_} * piece.tokens * piece.adapter->rank();
    }
    return floats;
}

}  // namespace heddle
