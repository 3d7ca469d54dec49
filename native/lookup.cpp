#include "lookup.h"

#include <algorithm>

namespace heddle {

// A position stands for the text before it: the key of position p is tokens p - 2 and p - 1.
void Lookup::append(const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        tokens_.push_back(tokens[i]);
        older_.push_back(-1);
        const size_t size = tokens_.size();
        if (size < kKey) continue;
        const auto end = static_cast<int32_t>(size);
        auto [found, added] = newest_.try_emplace(key(tokens_[size - 2], tokens_[size - 1]), end);
        if (added) continue;
        older_.back() = found->second;
        found->second = end;
    }
}

// How many tokens before position `end` equal those at the end of the text.
int64_t Lookup::common(int64_t end) const {
    const auto longest = std::min<int64_t>(end, kLongest);
    int64_t same = kKey;
    while (same < longest && tokens_[end - 1 - same] == tokens_[tokens_.size() - 1 - same]) ++same;
    return same;
}

std::pair<std::vector<int>, int> Lookup::guess(int most) const {
    std::pair<std::vector<int>, int> result{{}, 0};
    if (tokens_.size() < kKey || most < 1) return result;
    int64_t best = -1, best_length = 0;
    int32_t end = older_.back();
    for (int tries = 0; end >= 0 && tries < kTries && best_length < kLongest; ++tries) {
        const int64_t length = common(end);
        if (length > best_length) best = end, best_length = length;
        end = older_[static_cast<size_t>(end) - 1];
    }
    if (best < 0) return result;
    // A text that repeats itself with a short period goes on: the guesses follow themselves.
    const auto period = static_cast<int64_t>(tokens_.size()) - best;
    for (int64_t i = 0; i < most; ++i) result.first.push_back(tokens_[best + i % period]);
    result.second = static_cast<int>(best_length);
    return result;
}

}  // namespace heddle
