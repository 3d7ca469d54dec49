// Mixture of experts: the weights of a layer, and how a step's tokens are grouped by expert.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "adapter.h"
#include "kernels.h"
#include "mapping.h"
#include "routing.h"
#include "storage.h"

namespace heddle {

// One layer's experts. All have the same shapes: gate and up (hidden, width), down (width, hidden).
// Without gates, `gate` is empty, and an expert computes down(max(up(x), 0)^2).
struct ExpertLayer {
    Routing routing;
    Activation activation;      // of gates
    Map map;                    // of experts without gates
    bool weighs_input = false;  // an expert's weight is a factor on what it reads
    std::vector<std::shared_ptr<const Matrix>> gate, up, down;

    bool gated() const { return !gate.empty(); }
    int width() const { return up[0]->packed().columns; }
    int hidden() const { return up[0]->packed().rows; }
    // Panels of the matrices of one expert that read x.
    int panels_of_input() const { return (gated() ? 2 : 1) * up[0]->panels(); }
    int panels_of_width() const { return down[0]->panels(); }
    // Whether activations are quantised for gate and up, and for down.
    bool quantised_in() const { return is_quantised(up[0]->packed().format); }
    bool quantised_hidden() const { return is_quantised(down[0]->packed().format); }
    // Throws std::invalid_argument unless all matrices and the routing fit together.
    void check() const;
};

// The numbers of a layer's matrices for adapters: those of the first expert, and after them those
// of the others.
struct ExpertSites {
    int gate, up, down, end;
};

// Most tokens of a group. Down computes, weights and adds them at a time, and their results fit the
// second-level cache beside the panels. They are whole tiles of packed activations at all levels.
constexpr int kExpertTokens = 120;

// Tokens of one expert, all or some: rows [first, first + tokens) of those sorted by expert.
struct ExpertGroup {
    int expert;
    int first;
    int tokens;
};

// Consecutive rows of a group that one adapter changes.
struct ExpertPiece {
    int expert;
    int first;
    int tokens;
    const Adapter* adapter;
    float factor;
    int64_t low;  // of their products a x: the first float
};

// A position among the gate and up panels of all groups.
struct PanelPlace {
    int group;
    int panel;
};

// Codes of rows, and their copy by tiles of the tokens of a group, for groups with many.
struct CodedRows {
    std::vector<int8_t> codes;
    std::vector<BlockScale> scales;
    MappedArray<uint8_t> packed;

    void reserve(int64_t rows, int64_t columns, bool packs);
    QuantisedRows from(int64_t row, int64_t columns) {
        return {codes.data() + row * columns, scales.data() + row * (columns / kBlock), columns};
    }
    // Where the copy of a group begins that begins with `row`.
    uint8_t* tiles(int64_t row, int64_t columns) {
        return packed.data() + row * (columns / kBlock) * kPackedBlock;
    }
};

// Data that the instructions of an expert layer pass to one another. A row is one token at one of
// its experts. Rows are sorted by expert, then by token, so a step reads the weights of an expert
// once.
class ExpertRows {
  public:
    // Reserves memory for `layer` in steps of up to `tokens` tokens. `packs`: also for packed rows.
    void reserve(const ExpertLayer& layer, int tokens, int threads, bool packs);

    // Sorts the choices of `tokens` tokens by expert.
    void group(const ExpertLayer& layer, int tokens);
    // Finds the rows that adapters change, in their order, after `group`.
    void find_changed(const std::vector<Adapted>& changes, const ExpertSites& sites);
    // Reserves memory for the products of a step's adapters.
    void reserve_lows(const std::vector<Adapted>& changes);
    // The beginning of part `index`, of `parts` parts with about equal cost.
    PanelPlace cut(const ExpertLayer& layer, int index, int parts) const;

    const std::vector<ExpertGroup>& groups() const { return groups_; }
    int token(int row) const { return tokens_[static_cast<size_t>(row)]; }
    float weight(int row) const { return weights_[static_cast<size_t>(row)]; }
    // The changed rows of groups [first, last).
    std::pair<const ExpertPiece*, const ExpertPiece*> pieces(size_t first, size_t last) const {
        return {pieces_.data() + piece_ends_[first], pieces_.data() + piece_ends_[last]};
    }
    float* low(const ExpertPiece& piece) { return lows_.data() + piece.low; }
    float* scratch(int thread) { return scratch_[static_cast<size_t>(thread)].data(); }

    std::vector<int32_t> chosen;        // (tokens, used)
    std::vector<float> chosen_weights;  // (tokens, used)
    std::vector<float> x;               // (rows, width); or, for quantised matrices, its codes
    CodedRows x_coded;
    std::vector<float> gate, up;  // (rows, hidden); the activation is stored in gate
    CodedRows hidden_coded;

  private:
    std::vector<ExpertGroup> groups_;  // of experts with tokens, in the order of the rows
    std::vector<int64_t> costs_;       // (groups + 1,), of all groups before
    std::vector<int32_t> tokens_;      // (rows,)
    std::vector<float> weights_;       // (rows,)
    std::vector<int> next_;            // (experts,), the next free row of each
    std::vector<ExpertPiece> pieces_;  // by group
    std::vector<int> piece_ends_;      // (groups + 1,), pieces of all groups before
    LineFloats lows_;
    int most_used_ = 0;  // experts of a token, in any layer
    std::vector<std::vector<float>> scratch_;
};

}  // namespace heddle
