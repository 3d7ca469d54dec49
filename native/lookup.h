// Guesses the next tokens of a text: those that followed the longest earlier occurrence of its end.
//
// This is prompt look-up: an answer that copies from its prompt, or repeats itself, is guessed
// well. Positions with the same last kKey tokens form a chain, newest first, as in deflate (RFC
// 1951).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heddle {

class Lookup {
  public:
    void append(const int32_t* tokens, int64_t count);

    // Up to `most` tokens that may follow, and the number of tokens at the end of the text that
    // occurred before them (at most kLongest). Both are empty if fewer than kKey tokens occurred.
    // Among equally long occurrences the newest counts.
    std::pair<std::vector<int>, int> guess(int most) const;

    int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

  private:
    static constexpr int kKey = 2;       // shorter occurrences say little
    static constexpr int kTries = 32;    // occurrences to compare: bounds the time for "a a a a"
    static constexpr int kLongest = 16;  // tokens to compare

    static uint64_t key(int older, int newer) {
        return static_cast<uint64_t>(static_cast<uint32_t>(older)) << 32 |
               static_cast<uint32_t>(newer);
    }
    int64_t common(int64_t end) const;

    std::vector<int> tokens_;
    std::unordered_map<uint64_t, int32_t> newest_;  // the end of the newest occurrence of a key
    std::vector<int32_t> older_;  // by position: the end of the occurrence before; -1 if none
};

}  // namespace heddle
