#include "history.h"

#include <algorithm>
#include <cstddef>

namespace heddle {

void History::observe_prompt(const int32_t* tokens, int64_t count) {
    tokens_.reserve(tokens_.size() + static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) append(tokens[i]);
}

void History::observe_output(int token) {
    append(token);
    ++output_tokens_;
    if (counted_) ++counts_[token].output;
}

void History::append(int token) {
    tokens_.push_back(token);
    if (!counted_) return;
    ++counts_[token].recent;
    if (window_ < 0 || tokens_.size() <= static_cast<size_t>(window_)) return;
    --counts_[tokens_[tokens_.size() - 1 - static_cast<size_t>(window_)]].recent;
}

bool History::output_ends_with(const int* tokens, std::size_t count) const {
    return count <= output_tokens_ &&
           std::equal(tokens, tokens + count, tokens_.end() - static_cast<std::ptrdiff_t>(count));
}

Breakers::Breakers(const std::vector<TokenSequence>& sequences) {
    for (const TokenSequence& sequence : sequences) {
        tails_[sequence.front()].emplace_back(sequence.begin() + 1, sequence.end());
    }
    for (auto& [head, tails] : tails_) {
        std::sort(tails.begin(), tails.end(),
                  [](const auto& a, const auto& b) { return a.size() > b.size(); });
    }
}

int Breakers::tokens_since(const std::vector<int>& tokens, int window) const {
    for (int after = 0; after < window; ++after) {  // tokens behind the head
        const auto head = tokens.end() - 1 - after;
        const auto found = tails_.find(*head);
        if (found == tails_.end()) continue;
        for (const TokenSequence& tail : found->second) {
            const int length = static_cast<int>(tail.size());
            if (length <= after && std::equal(tail.begin(), tail.end(), head + 1)) {
                return after - length;
            }
        }
    }
    return window;
}

bool Breakers::is_breaker(int token) const {
    const auto found = tails_.find(token);
    return found != tails_.end() && found->second.back().empty();
}

// Read backwards, a suffix of the tokens is a prefix. The Z algorithm gives the length of the
// prefix that occurs at each place (Gusfield 1997, Algorithms on Strings, Trees and Sequences,
// 1.4).
std::unordered_map<int, int> repetitions(const std::vector<int>& tokens, int window, int limit,
                                         int shortest) {
    std::unordered_map<int, int> longest;
    const auto back = [&](int i) { return tokens[tokens.size() - 1 - static_cast<size_t>(i)]; };
    std::vector<int> match(static_cast<size_t>(window), 0);
    int left = 0, right = 0;  // the match that reaches furthest: places [left, right)
    for (int i = 1; i < window; ++i) {
        int length = i < right ? std::min(right - i, match[i - left]) : 0;
        while (i + length < window && back(length) == back(i + length)) ++length;
        match[i] = length;
        if (i + length > right) {
            left = i;
            right = i + length;
        }
        const int counted = std::min(length, limit);
        if (counted < shortest) continue;
        int& known = longest[back(i - 1)];
        known = std::max(known, counted);
    }
    return longest;
}

}  // namespace heddle
