// The history of a sequence for its samplers: its tokens, and counts derived from them.
//
// The executor can rebuild it from the tokens alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace heddle {

using TokenSequence = std::vector<int>;

class History {
  public:
    struct Count {
        int output = 0;  // occurrences in the output
        int recent = 0;  // occurrences in the window, prompt included
    };

    // Counts tokens if `counted`. `window` is the number of latest tokens to count; negative: all.
    History(bool counted, int window) : counted_(counted), window_(window) {}

    void observe_prompt(const int32_t* tokens, int64_t count);
    void observe_output(int token);

    const std::vector<int>& tokens() const { return tokens_; }
    uint32_t output_tokens() const { return output_tokens_; }
    const std::unordered_map<int, Count>& counts() const { return counts_; }

    // Whether the output ends with `tokens`.
    bool output_ends_with(const int* tokens, std::size_t count) const;

  private:
    void append(int token);

    bool counted_;
    int window_;
    uint32_t output_tokens_ = 0;
    std::vector<int> tokens_;
    std::unordered_map<int, Count> counts_;
};

// DRY's breakers: token sequences that end a repetition, by their first token.
class Breakers {
  public:
    explicit Breakers(const std::vector<TokenSequence>& sequences);

    // Number of tokens after the last breaker among the last `window` of `tokens`; `window` if
    // there is no breaker.
    int tokens_since(const std::vector<int>& tokens, int window) const;

    bool is_breaker(int token) const;  // by itself

  private:
    std::unordered_map<int, std::vector<TokenSequence>> tails_;  // longest first
};

// For every token that would continue a repetition, the length of the longest repetition: the
// suffix of `tokens` (at most its last `limit`) that occurs earlier among the last `window` and is
// followed there by that token. Repetitions shorter than `shortest` are left out. Linear in the
// window.
std::unordered_map<int, int> repetitions(const std::vector<int>& tokens, int window, int limit,
                                         int shortest);

}  // namespace heddle
