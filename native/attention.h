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

// Queries handled together, and vectors each of them works on at once: as many accumulators as fit
// the registers, and enough independent ones to hide the latency of the fused multiply-add even
// for the three queries of a small group.
#if defined(HEDDLE_ISA_AVX512)
constexpr int kTogether = 8, kWide = 2;
#else
constexpr int kTogether = 4, kWide = 1;
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
    for (int from = 0; from < kPageTokens; from += kWide * 16) {
        V16 acc[N][kWide];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < kWide; ++j) acc[i][j] = splat(0.0f);
        }
        for (int d = 0; d < head_dim; ++d) {
            V16 k[kWide];
            for (int j = 0; j < kWide; ++j) k[j] = load_f16(keys + d * kPageTokens + from + j * 16);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                const V16 q = splat(tile.q[first + i][d]);
                for (int j = 0; j < kWide; ++j) acc[i][j] = fma(q, k[j], acc[i][j]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < kWide; ++j) {
                store(tile.weights + (first + i) * kPageTokens + from + j * 16, acc[i][j]);
            }
        }
    }
}

// Adds weights[from..to) times the values of those positions, Wide vectors of the head from d on.
template <int N, int Wide>
inline void add_value_columns(QueryTile& tile, int first, const uint16_t* values, int head_dim,
                              int d, int from, int to) {
    V16 acc[N][Wide];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < Wide; ++j) {
            acc[i][j] = load(tile.values + (first + i) * head_dim + d + j * 16);
        }
    }
    for (int t = from; t < to; ++t) {
        V16 v[Wide];
        for (int j = 0; j < Wide; ++j) v[j] = load_f16(values + t * head_dim + d + j * 16);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            const V16 w = splat(tile.weights[(first + i) * kPageTokens + t]);
            for (int j = 0; j < Wide; ++j) acc[i][j] = fma(w, v[j], acc[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < Wide; ++j) {
            store(tile.values + (first + i) * head_dim + d + j * 16, acc[i][j]);
        }
    }
}

template <int N>
inline void add_values(QueryTile& tile, int first, const uint16_t* values, int head_dim, int from,
                       int to) {
    int d = 0;
    for (; d + kWide * 16 <= head_dim; d += kWide * 16) {
        add_value_columns<N, kWide>(tile, first, values, head_dim, d, from, to);
    }
    for (; d < head_dim; d += 16) {
        add_value_columns<N, 1>(tile, first, values, head_dim, d, from, to);
    }
}

template <int N>
struct Count {
    static constexpr int value = N;
};

// Calls f(Count<N>, first) over the queries in groups of at most kTogether.
template <typename F>
inline void for_queries(int count, F f) {
    int first = 0;
    for (; count - first >= kTogether; first += kTogether) f(Count<kTogether>(), first);
    switch (count - first) {
        case 7:
            return f(Count<7>(), first);
        case 6:
            return f(Count<6>(), first);
        case 5:
            return f(Count<5>(), first);
        case 4:
            return f(Count<4>(), first);
        case 3:
            return f(Count<3>(), first);
        case 2:
            return f(Count<2>(), first);
        case 1:
            return f(Count<1>(), first);
    }
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
    if (page_peak > tile.peak[i]) {
        // Without a new maximum the decay would be exp(0), which is exactly 1.
        const V16 decay = exp(splat(tile.peak[i] - page_peak));
        tile.mass[i] *= first_lane(decay);
        for (int d = 0; d < head_dim; d += 16) {
            float* v = tile.values + i * head_dim + d;
            store(v, load(v) * decay);
        }
        tile.peak[i] = page_peak;
    }
    const V16 peak = splat(tile.peak[i]);
    const V16 e_low = exp(low - peak), e_high = exp(high - peak);
    store(w, e_low);
    store(w + 16, e_high);
    tile.mass[i] += reduce_add(e_low + e_high);
}

// Asks for a head's part of a page ahead of its use. Parts of consecutive pages lie far apart,
// where the hardware prefetcher cannot follow.
inline void prefetch_part(const uint16_t* kv, int head_dim) {
    const char* at = reinterpret_cast<const char*>(kv);
    for (int byte = 0; byte < 4 * head_dim * kPageTokens; byte += 64) {
        __builtin_prefetch(at + byte, 0, 2);
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
    for_queries(count, [&](auto n, int first) {
        page_scores<decltype(n)::value>(tile, begin + first, kv, head_dim);
    });
    for (int i = begin; i < tile.count; ++i) {
        soften(tile, i, visible_in_page(tile, i, page), scale, head_dim);
    }
    for_queries(count, [&](auto n, int first) {
        add_values<decltype(n)::value>(tile, begin + first, values, head_dim, 0, shared);
    });
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
        if (page + 1 < pages) {
            prefetch_part(a.kv + a.pages[page + 1] * a.page_stride, a.head_dim);
        }
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
