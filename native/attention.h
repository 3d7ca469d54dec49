// Causal attention of one key/value head over a sequence's pages, online softmax in page order.
//
// A query's arithmetic is fixed by its own position alone: pages ascending, within a page all 32
// scores in the order of head elements, one maximum, one sum, values added by ascending position.
// Queries are handled together only to read each key and value once (Milakov & Gimelshein 2018,
// arXiv:1805.02867, for the online softmax).
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

#if defined(HEDDLE_ISA_AVX512)
constexpr int kTogether = 8;  // queries whose accumulators fit the registers
#else
constexpr int kTogether = 4;
#endif

struct QueryTile {
    int count;
    const float* q[kAttendQueries];  // (head_dim,)
    float* out[kAttendQueries];
    int position[kAttendQueries];
    float peak[kAttendQueries];  // running maximum
    float mass[kAttendQueries];  // running sum of exponentials
    float* values;               // (count, head_dim), unnormalised output
    float* weights;              // (count, 32), this page's scores, then exponentials
};

template <int N>
inline void page_scores(QueryTile& tile, int first, const uint16_t* keys, int head_dim) {
    for (int half = 0; half < kPageTokens; half += 16) {
        V16 acc[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[i] = splat(0.0f);
        for (int d = 0; d < head_dim; ++d) {
            const V16 k = load_f16(keys + d * kPageTokens + half);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) acc[i] = fma(splat(tile.q[first + i][d]), k, acc[i]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            store(tile.weights + (first + i) * kPageTokens + half, acc[i]);
        }
    }
}

// Adds weights[from..to) times the values of those positions.
template <int N>
inline void add_values(QueryTile& tile, int first, const uint16_t* values, int head_dim, int from,
                       int to) {
    for (int d = 0; d < head_dim; d += 16) {
        V16 acc[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[i] = load(tile.values + (first + i) * head_dim + d);
        for (int t = from; t < to; ++t) {
            const V16 v = load_f16(values + t * head_dim + d);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                acc[i] = fma(splat(tile.weights[(first + i) * kPageTokens + t]), v, acc[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) store(tile.values + (first + i) * head_dim + d, acc[i]);
    }
}

// Calls f<N>(first) over the queries in groups of at most kTogether.
#define HEDDLE_FOR_QUERIES(count, CALL)     \
    for (int first = 0; first < (count);) { \
        const int left = (count) - first;   \
        if (kTogether >= 8 && left >= 8) {  \
            CALL(8);                        \
            first += 8;                     \
        } else if (left >= 4) {             \
            CALL(4);                        \
            first += 4;                     \
        } else if (left == 3) {             \
            CALL(3);                        \
            first += 3;                     \
        } else if (left == 2) {             \
            CALL(2);                        \
            first += 2;                     \
        } else {                            \
            CALL(1);                        \
            first += 1;                     \
        }                                   \
    }

// Scores to exponentials; rescales what earlier pages left. `visible` is at least 1.
inline void soften(QueryTile& tile, int i, int visible, float scale, int head_dim) {
    static const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const V16 lanes = load(lane_numbers);
    const V16 hidden = splat(-__builtin_inff());
    float* w = tile.weights + i * kPageTokens;
    const V16 low =
        select_less(lanes, splat(static_cast<float>(visible)), load(w) * splat(scale), hidden);
    const V16 high = select_less(lanes, splat(static_cast<float>(visible - 16)),
                                 load(w + 16) * splat(scale), hidden);
    const float page_peak = reduce_max(max(low, high));
    const float peak = tile.peak[i] > page_peak ? tile.peak[i] : page_peak;
    const V16 decay = exp(splat(tile.peak[i] - peak));
    const V16 e_low = exp(low - splat(peak)), e_high = exp(high - splat(peak));
    store(w, e_low);
    store(w + 16, e_high);
    float decay_lanes[16];
    store(decay_lanes, decay);
    tile.mass[i] = tile.mass[i] * decay_lanes[0] + reduce_add(e_low + e_high);
    tile.peak[i] = peak;
    for (int d = 0; d < head_dim; d += 16) {
        float* v = tile.values + i * head_dim + d;
        store(v, load(v) * decay);
    }
}

inline int visible_in_page(const QueryTile& tile, int i, int page) {
    const int n = tile.position[i] - page * kPageTokens + 1;
    return n > kPageTokens ? kPageTokens : n;
}

// Queries are in position order, so the ones that see a page at all are the last ones.
inline void attend_page(QueryTile& tile, int page, const uint16_t* kv, int head_dim, float scale) {
    int begin = 0;
    while (visible_in_page(tile, begin, page) <= 0) ++begin;
    const int shared = visible_in_page(tile, begin, page);
    const uint16_t* values = kv + head_dim * kPageTokens;
    const int count = tile.count - begin;
#define HEDDLE_SCORES(N) page_scores<N>(tile, begin + first, kv, head_dim)
    HEDDLE_FOR_QUERIES(count, HEDDLE_SCORES)
#undef HEDDLE_SCORES
    for (int i = begin; i < tile.count; ++i) {
        soften(tile, i, visible_in_page(tile, i, page), scale, head_dim);
    }
#define HEDDLE_VALUES(N) add_values<N>(tile, begin + first, values, head_dim, 0, shared)
    HEDDLE_FOR_QUERIES(count, HEDDLE_VALUES)
#undef HEDDLE_VALUES
    for (int i = begin; i < tile.count; ++i) {
        const int visible = visible_in_page(tile, i, page);
        if (visible > shared) add_values<1>(tile, i, values, head_dim, shared, visible);
    }
}

inline void attend_tile(const AttendArgs& a, int first_query, int count) {
    QueryTile tile;
    tile.count = count;
    tile.values = a.scratch;
    tile.weights = a.scratch + static_cast<int64_t>(kAttendQueries) * a.head_dim;
    for (int i = 0; i < count; ++i) {
        const int token = (first_query + i) / a.group, head = (first_query + i) % a.group;
        const int64_t at = token * a.q_stride + static_cast<int64_t>(head) * a.head_dim;
        tile.q[i] = a.q + at;
        tile.out[i] = a.out + at;
        tile.position[i] = a.first_position + token;
        tile.peak[i] = -__builtin_inff();
        tile.mass[i] = 0.0f;
    }
    for (int i = 0; i < count * a.head_dim; ++i) tile.values[i] = 0.0f;
    const int pages = tile.position[count - 1] / kPageTokens + 1;
    for (int page = 0; page < pages; ++page) {
        attend_page(tile, page, a.kv + a.pages[page] * a.page_stride, a.head_dim, a.scale);
    }
    for (int i = 0; i < count; ++i) {
        const V16 mass = splat(tile.mass[i]);
        for (int d = 0; d < a.head_dim; d += 16) {
            store(tile.out[i] + d, load(tile.values + i * a.head_dim + d) / mass);
        }
    }
}

void attend(const AttendArgs& a) {
    const int queries = a.tokens * a.group;
    for (int first = 0; first < queries; first += kAttendQueries) {
        const int left = queries - first;
        attend_tile(a, first, left < kAttendQueries ? left : kAttendQueries);
    }
}

}  // namespace
