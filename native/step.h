// The work of one step: tokens, their positions in their sequences, and the wanted outcomes.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "adapter.h"
#include "kernels.h"
#include "sampler.h"
#include "score.h"

namespace heddle {

// The pages that a sequence holds of one group of layers: page `first` and those after it.
struct PageTable {
    const int32_t* pages;
    int first;
    int32_t at(int page) const { return pages[page - first]; }
};

// Tokens of one sequence in a step.
struct Span {
    int row;  // of its first token in the step
    int tokens;
    int first_position;
    const PageTable* tables;  // one for each group of layers
    // The fixed-size state before the span, and the one that gets the state after its last token.
    // If they differ, the first one holds the first `certain` tokens afterwards.
    int state, kept_state, certain;
    int last_page() const { return (first_position + tokens - 1) / kPageTokens; }
};

// A token whose logits give the probability of `target`.
struct ScoredRow {
    int row;
    int target;
    int top;  // how many of the likeliest tokens to report beside it
};

// A token whose last hidden state is added to a running sum.
struct PooledRow {
    int row;
    double* sum;  // (width,)
};

// The rows from which one sampler picks: those of a sequence's last token that is known, and of the
// guesses after it. A guess is the token after its row, `ids[row + 1]`.
struct Draw {
    Sampler* sampler;
    int first;  // index in `Step::rows`
    int count;
};

// Rows of a picture: what stands in the place of the embeddings of consecutive tokens.
struct SeenRows {
    int row;  // of the first token
    int tokens, width;
    const float* values;  // (tokens, width)
};

struct Step {
    int tokens = 0;
    const int32_t* ids = nullptr;        // (tokens,)
    const int32_t* positions = nullptr;  // (tokens,)
    // (tokens, axes): what rotations of several axes turn by; null: there are none.
    const int32_t* places = nullptr;
    int axes = 0;
    // (tokens, kinds, 2): for each kind the run of positions [begin, end) that a token is in, for
    // attention that sees whole runs; null: a run is the token alone.
    const int32_t* runs = nullptr;
    int run_kinds = 0;
    std::vector<SeenRows> seen;
    // The stages to compute, so that a step may be computed in pieces; the last one is not
    // included, and -1 stands for the end. All pieces have the same tokens.
    int first_stage = 0, last_stage = -1;
    // Of the items of each stage, this part of so many equal ones.
    int part = 0, parts = 1;
    std::vector<Span> spans;
    std::vector<PageTable> tables;  // of all spans
    std::vector<int32_t> rows;      // token rows whose logits are wanted
    std::vector<Draw> draws;        // of all rows; empty leaves the logits alone
    std::vector<Adapted> adapted;   // rows that adapters change, in this order
    std::vector<ScoredRow> scored;
    std::vector<PooledRow> pooled;         // added to their sums in this order
    std::vector<std::vector<Pick>> picks;  // filled by the step, one or more for each draw
    std::vector<Score> scores;             // filled by the step, one per scored row
    // Whether the samplers may run. Other threads may make their masks during the step.
    // Program::finish sets it.
    std::atomic<bool> may_sample{true};
};

}  // namespace heddle
