// An engram: a file that says which tokens followed an n-gram of tokens in some texts, and how
// often. docs/guides/engrams.md has the format. This reader serves requests.
//
// The file is never mapped, like files of weights: after a truncation of a mapped file, the next
// access would kill the process. The reader keeps the filter in memory and reads a slot and a
// record where the filter lets an n-gram pass. The system's page cache shares the bytes among
// processes, as it would share a map. Every read is checked, so a damaged file gives fewer
// predictions and nothing worse.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle {

struct Prediction {
    int token;
    double probability;
};

class Engram {
  public:
    // The most predictions of a record that are used, the likeliest first.
    static constexpr size_t kMostPredictions = 64;
    static constexpr size_t kLongestOrder = 16;

    // What the header says.
    struct Header {
        uint32_t version = 0;
        uint32_t longest = 0;   // most tokens of an n-gram
        uint32_t shortest = 0;  // fewest
        uint64_t table_size = 0;
        uint64_t entries = 0;
        uint64_t filter_bits = 0;
        uint64_t filter_at = 0;
        uint64_t table_at = 0;
        uint64_t data_at = 0;
        uint64_t data_bytes = 0;
        uint64_t vocabulary = 0;  // 0 in version 1
        std::array<uint8_t, 32> fingerprint{};
    };

    // Look-ups since the file was opened: all n-grams, those the filter stopped, and those found.
    struct Counts {
        uint64_t looked_up, filtered, found;
    };

    // Reads the open file `file` through a descriptor of its own. Tokens from `vocabulary` on are
    // never predicted; 0 takes the vocabulary of the header, which version 1 does not have. Throws
    // std::invalid_argument "field: reason" for a bad file, std::runtime_error for one that cannot
    // be read.
    Engram(int file, uint64_t vocabulary);
    ~Engram();
    Engram(const Engram&) = delete;
    Engram& operator=(const Engram&) = delete;

    // What follows the last tokens: the record of the longest n-gram that the table has, falling by
    // probability, at most kMostPredictions. Empty if the table has none of the n-grams. Any thread
    // may call this.
    std::vector<Prediction> predict(const int* tokens, size_t count) const;

    const Header& header() const { return header_; }
    Counts counts() const;

  private:
    void read_version_1();
    void read_version_2(const uint8_t* fixed);
    void check_layout(uint64_t header_bytes) const;
    void read_filter();
    void make_filter();

    size_t read(uint64_t offset, void* out, size_t bytes) const;
    bool passes_filter(uint64_t hash) const;
    std::vector<Prediction> look_up(const int* ngram, size_t order) const;
    bool read_record(uint64_t offset, const int* ngram, size_t order,
                     std::vector<Prediction>& found) const;

    int file_;
    uint64_t file_bytes_ = 0;
    Header header_;
    std::vector<uint8_t> filter_;
    mutable std::atomic<uint64_t> looked_up_{0}, filtered_{0}, found_{0};
};

}  // namespace heddle
