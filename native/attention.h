// Causal attention of one key/value head over a sequence's pages, online softmax in page order,
// over all positions before a query or a window of them.
//
// Positions are taken in splits of fixed size, each from nothing, and merged in order, so that the
// splits of a long context may be computed by several threads.
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
    int first_seen[kAttendQueries];  // the first position in its window
    float* peak;                     // (count,) running maximum
    float* mass;                     // (count,) running sum of exponentials
    float* values;                   // (count, head_dim), unnormalised output
    float* weights;                  // (count, 32), this page's scores, then exponentials
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

// The positions of a page that a query sees: [from, to) within the page.
struct Sight {
    int from, to;
};

// Scores to exponentials; rescales what earlier pages left.
inline void soften(QueryTile& tile, int i, Sight seen, float scale, int head_dim) {
    static const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const V16 lanes = load(lane_numbers);
    const V16 hidden = splat(-__builtin_inff());
    float* w = tile.weights + i * kPageTokens;
    const auto masked = [&](int from) {
        const V16 scores = load(w + from) * splat(scale);
        const V16 ended =
            select_less(lanes, splat(static_cast<float>(seen.to - from)), scores, hidden);
        return select_less(lanes, splat(static_cast<float>(seen.from - from)), hidden, ended);
    };
    const V16 low = masked(0), high = masked(16);
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

inline Sight sight(const QueryTile& tile, int i, int page) {
    const int base = page * kPageTokens;
    const int from = tile.first_seen[i] - base, to = tile.position[i] - base + 1;
    return {from < 0 ? 0 : from, to > kPageTokens ? kPageTokens : to};
}

inline bool sees(const QueryTile& tile, int i, int page) {
    const Sight s = sight(tile, i, page);
    return s.from < s.to;
}

// Queries are in position order, so those that see a page are neighbours: [begin, end). Positions
// that all of them see are handled together, those before and after one query at a time; for each
// query, values are added by ascending position.
inline void attend_page(QueryTile& tile, int page, const uint16_t* kv, int head_dim, float scale) {
    int begin = 0, end = tile.count;
    while (begin < end && !sees(tile, begin, page)) ++begin;
    while (end > begin && !sees(tile, end - 1, page)) --end;
    if (begin == end) return;
    const uint16_t* values = kv + head_dim * kPageTokens;
    for_queries(end - begin, [&](auto n, int first) {
        page_scores<decltype(n)::value>(tile, begin + first, kv, head_dim);
    });
    for (int i = begin; i < end; ++i) soften(tile, i, sight(tile, i, page), scale, head_dim);
    const int from = sight(tile, end - 1, page).from, to = sight(tile, begin, page).to;
    if (from >= to) {
        for (int i = begin; i < end; ++i) {
            const Sight s = sight(tile, i, page);
            add_values<1>(tile, i, values, head_dim, s.from, s.to);
        }
        return;
    }
    for (int i = begin; i < end; ++i) {
        const int first = sight(tile, i, page).from;
        if (first < from) add_values<1>(tile, i, values, head_dim, first, from);
    }
    for_queries(end - begin, [&](auto n, int first) {
        add_values<decltype(n)::value>(tile, begin + first, values, head_dim, from, to);
    });
    for (int i = begin; i < end; ++i) {
        const int last = sight(tile, i, page).to;
        if (last > to) add_values<1>(tile, i, values, head_dim, to, last);
    }
}

inline QueryTile make_tile(const AttendArgs& a, int first_query, int count) {
    QueryTile tile;
    tile.count = count;
    tile.weights = a.scratch;
    for (int i = 0; i < count; ++i) {
        const int token = (first_query + i) / a.group, head = (first_query + i) % a.group;
        const int64_t at = token * a.q_stride + static_cast<int64_t>(head) * a.head_dim;
        tile.q[i] = a.q + at;
        tile.out[i] = a.out + at;
        tile.position[i] = a.first_position + token;
        const int before_window = a.window > 0 ? tile.position[i] + 1 - a.window : 0;
        tile.first_seen[i] = before_window > 0 ? before_window : 0;
    }
    return tile;
}

// Where a tile keeps its running sums: an AttendPart's worth of floats.
inline void keep_in(QueryTile& tile, float* part, int head_dim) {
    tile.values = part;
    tile.peak = part + static_cast<int64_t>(kAttendQueries) * head_dim;
    tile.mass = tile.peak + kAttendQueries;
}

// One split from nothing.
inline void run_split(QueryTile& tile, const AttendArgs& a, int split) {
    constexpr int kSplitPages = kSplitTokens / kPageTokens;
    for (int i = 0; i < tile.count; ++i) {
        tile.peak[i] = -__builtin_inff();
        tile.mass[i] = 0.0f;
    }
    for (int i = 0; i < tile.count * a.head_dim; ++i) tile.values[i] = 0.0f;
    const int begin = tile.first_seen[0] / kPageTokens;
    const int end = tile.position[tile.count - 1] / kPageTokens + 1;
    const int from = split * kSplitPages > begin ? split * kSplitPages : begin;
    const int to = (split + 1) * kSplitPages < end ? (split + 1) * kSplitPages : end;
    for (int page = from; page < to; ++page) {
        if (page + 1 < to) prefetch_part(a.kv + a.pages[page + 1] * a.page_stride, a.head_dim);
        attend_page(tile, page, a.kv + a.pages[page] * a.page_stride, a.head_dim, a.scale);
    }
}

// Takes the sums of one more split into `total`. What a query did not see changes nothing, so that
// its arithmetic does not depend on the splits its neighbours see.
inline void merge_split(const QueryTile& total, const QueryTile& part, int head_dim) {
    for (int i = 0; i < total.count; ++i) {
        if (part.mass[i] == 0.0f) continue;
        float* sum = total.values + i * head_dim;
        const float* more = part.values + i * head_dim;
        if (total.mass[i] == 0.0f) {
            std::memcpy(sum, more, static_cast<size_t>(head_dim) * sizeof(float));
            total.mass[i] = part.mass[i];
            total.peak[i] = part.peak[i];
            continue;
        }
        const float peak = total.peak[i] > part.peak[i] ? total.peak[i] : part.peak[i];
        const V16 keep = exp(splat(total.peak[i] - peak)), take = exp(splat(part.peak[i] - peak));
        total.mass[i] = total.mass[i] * first_lane(keep) + part.mass[i] * first_lane(take);
        total.peak[i] = peak;
        for (int d = 0; d < head_dim; d += 16) {
            store(sum + d, fma(load(more + d), take, load(sum + d) * keep));
        }
    }
}

inline void write_output(const QueryTile& tile, int head_dim) {
    for (int i = 0; i < tile.count; ++i) {
        const V16 mass = splat(tile.mass[i]);
        for (int d = 0; d < head_dim; d += 16) {
            store(tile.out[i] + d, load(tile.values + i * head_dim + d) / mass);
        }
    }
}

inline int first_split(const QueryTile& tile) { return tile.first_seen[0] / kSplitTokens; }
inline int last_split(const QueryTile& tile) {
    return tile.position[tile.count - 1] / kSplitTokens;
}

void attend(const AttendArgs& a) {
    float* total_part = a.scratch + static_cast<int64_t>(kAttendQueries) * kPageTokens;
    float* split_part = total_part + attend_part(a.head_dim);
    const int queries = a.tokens * a.group;
    for (int first = 0; first < queries; first += kAttendQueries) {
        const int left = queries - first;
        QueryTile total = make_tile(a, first, left < kAttendQueries ? left : kAttendQueries);
        QueryTile part = total;
        keep_in(total, total_part, a.head_dim);
        keep_in(part, split_part, a.head_dim);
        run_split(total, a, first_split(total));
        for (int split = first_split(total) + 1; split <= last_split(total); ++split) {
            run_split(part, a, split);
            merge_split(total, part, a.head_dim);
        }
        write_output(total, a.head_dim);
    }
}

void attend_split(const AttendArgs& a, int split, float* part) {
    QueryTile tile = make_tile(a, 0, a.tokens * a.group);
    keep_in(tile, part, a.head_dim);
    run_split(tile, a, split);
}

void attend_merge(const AttendArgs& a, float* parts) {
    QueryTile total = make_tile(a, 0, a.tokens * a.group);
    QueryTile part = total;
    const int first = first_split(total);
    keep_in(total, parts + first * attend_part(a.head_dim), a.head_dim);
    for (int split = first + 1; split <= last_split(total); ++split) {
        keep_in(part, parts + split * attend_part(a.head_dim), a.head_dim);
        merge_split(total, part, a.head_dim);
    }
    write_output(total, a.head_dim);
}

}  // namespace
