// Adapters: low-rank changes of a model's matrices, which some rows of a step have (LoRA, Hu et al.
// 2021, arXiv:2106.09685).
//
// A row's arithmetic depends on its own adapters only. After a matmul, each changed row gains
// b (scales * (a x)). Both products are chains of the matmul kernel, one for each row and element,
// with any other rows beside them. DoRA (Liu et al. 2024, arXiv:2402.09353) also multiplies each
// element of W x by a factor of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "line_floats.h"
#include "storage.h"

namespace heddle {

// The change of one matrix (n, k): a is (rank, k), b is (n, rank), both floats or integers, whose
// rows of a and columns of b have the product of their scales in `scales` (rank). Null: none.
// Without b, a is (n, k) and takes the place of the matrix. Of a table that rows are looked up in,
// a is transposed, (n, rank), and b is (k, rank).
struct LowRank {
    std::shared_ptr<const Matrix> a, b;
    std::vector<float> scales;
    std::vector<float> gains;  // (n,), factors on W x that are added to 1; empty: none
};

// Multiplies products a x of some rows by the scales of a change, and by a request's factor.
inline void scale_low(const LowRank& change, float factor, int rows, float* low) {
    const auto rank = static_cast<int>(change.scales.size());
    for (int i = 0; i < rows * rank; ++i) {
        low[i] *= factor * change.scales[static_cast<size_t>(i % rank)];
    }
}

class Adapter {
  public:
    // A change for each site, which is the number of a matrix in a program.
    Adapter(int64_t program, std::vector<LowRank> changes);
    // The change at a site; null if there is none.
    const LowRank* at(int site) const {
        const LowRank& change = changes_[static_cast<size_t>(site)];
        return change.a == nullptr ? nullptr : &change;
    }
    // Whether there is a change at one of the sites [first, last).
    bool changes(int first, int last) const {
        return counts_[static_cast<size_t>(first)] < counts_[static_cast<size_t>(last)];
    }
    int rank() const { return rank_; }  // the largest
    int64_t bytes() const;
    // The number of the program whose sites are meant.
    int64_t program() const { return program_; }

  private:
    int64_t program_;
    std::vector<LowRank> changes_;
    std::vector<int> counts_;  // (sites + 1,), of changes before each
    int rank_ = 0;
};

// Rows [row, row + tokens) of a step that an adapter changes, with a factor on its changes.
struct Adapted {
    int row, tokens;
    std::shared_ptr<const Adapter> adapter;
    float factor;
};

// The rows of a step, or of a pass over its wanted rows, that one adapter changes.
struct AdaptedRows {
    const Adapter* adapter;
    float factor;
    int row, tokens;
    int64_t low;  // of their products a x: the first float
};

// Rows of a piece at most: a prompt's rows are work for all threads.
constexpr int kPieceRows = 32;

// Cuts a step's changed rows into pieces. A piece's products a x are one item of work, and they lie
// in memory by part of a matmul, then by row: adapter.rank() floats each.
class AdapterPlan {
  public:
    void allow(int parts) { parts_ = parts > parts_ ? parts : parts_; }  // of a matmul
    void cut(const std::vector<Adapted>& changes);
    // The changed rows among those wanted: row i of the pass is token row wanted[i].
    void cut_wanted(const std::vector<Adapted>& changes, const int32_t* wanted, int count);
    const std::vector<AdaptedRows>& pieces(bool per_row) const {
        return per_row ? wanted_pieces_ : pieces_;
    }
    float* low(const AdaptedRows& piece, int part) {
        const int64_t of_part = int64_t{piece.tokens} * piece.adapter->rank();
        return lows_.data() + piece.low + part * of_part;
    }

  private:
    void add(std::vector<AdaptedRows>& pieces, const Adapted& change, int row, int tokens);
    int64_t place(std::vector<AdaptedRows>& pieces) const;
    int parts_ = 1;
    std::vector<AdaptedRows> pieces_, wanted_pieces_;
    LineFloats lows_;
};

}  // namespace heddle
