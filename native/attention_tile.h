// A tile of attention: queries that are handled together, and what is kept of them.
#pragma once

#include "formats.h"
#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

// The number of queries handled together, and of vectors that each query works on at once. The
// accumulators fit the registers. Enough of them are independent to hide the latency of the fused
// multiply-add, even for the three queries of a small group.
#if defined(HEDDLE_ISA_AVX512)
constexpr int kTogether = 8, kWide = 2;
#else
constexpr int kTogether = 6, kWide = 1;
#endif
constexpr int kSplitPages = kSplitTokens / kPageTokens;

// Queries as int8 codes, by the rule of the keys' codes.
struct QueryCodes {
    int8_t* codes;  // (count, head_dim)
    float* scales;  // (count, head_dim / kBlock)
    int32_t* sums;  // of the codes of a block, likewise
};

struct QueryTile {
    int count;
    int rank;                             // elements of a latent, if keys are latents
    const float* q[kAttendQueries];       // (head_dim,), or (rank,)
    QueryCodes codes;                     // of q, if keys are codes
    const float* turned[kAttendQueries];  // (head_dim - rank,) beside the latter
    const float* bias[kAttendQueries];    // by position, what joins its score; if there is any
    float* out[kAttendQueries];
    int begin[kAttendQueries], end[kAttendQueries];  // the positions that it attends to
    float* peak;                                     // (count,) largest score, before scaling
    float* mass;                                     // (count,) sum of exponentials
    float* values;                                   // (count, value_dim), unnormalised output
    float* weights;  // (count, kSplitTokens), the split's scores, then exponentials
};

// Prefetches one half of a part, its keys or its values, a little at a time while another half is
// computed. Parts of consecutive pages lie far apart, so the hardware prefetcher cannot follow. A
// prefetch of all lines at once would take every line fill buffer, and nothing would be computed
// meanwhile.
template <typename Part>
class Prefetcher {
  public:
    Prefetcher(const uint8_t* half, int head_dim)
        : at_(half), end_(half ? half + kv_half_bytes(Part::kType, head_dim) : half) {}
    // Prefetches two lines. Call it every kEvery of the 2 * head_dim / kWide steps that a query
    // group takes over a half.
    static constexpr int kEvery = (Part::kType == KvType::kF16 ? 4 : 8) / kWide;
    // Kernels of codes take two loads for each eight elements or positions. Whether to call it
    // before both of them, or before the first only.
    static constexpr bool kInBothHalves = kWide == 2 && Part::kType == KvType::kQ8_0;
    void step() {
        if (at_ >= end_) return;
        __builtin_prefetch(at_, 0, 2);
        __builtin_prefetch(at_ + 64, 0, 2);
        at_ += 128;
    }

  private:
    const uint8_t *at_, *end_;
};

// The place of the scores of query i with a page's positions.
inline float* page_weights(const QueryTile& tile, int i, int page) {
    return tile.weights + i * kSplitTokens + page % kSplitPages * kPageTokens;
}

template <int N>
struct Count {
    static constexpr int value = N;
};

template <int N, typename F>
inline void for_exactly(int count, int first, F f) {
    if (count == N) return f(Count<N>(), first);
    if constexpr (N > 1) for_exactly<N - 1>(count, first, f);
}

// Calls f(Count<N>, first) over the queries in groups of nearly equal size, at most kTogether.
template <typename F>
inline void for_queries(int count, F f) {
    const int groups = (count + kTogether - 1) / kTogether;
    for (int i = 0; i < groups; ++i) {
        const int first = count * i / groups, last = count * (i + 1) / groups;
        for_exactly<kTogether>(last - first, first, f);
    }
}

}  // namespace
