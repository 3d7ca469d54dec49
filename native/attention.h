// Attention of one key/value head over a sequence's pages, over all positions before a query or a
// window of them; or, in encoders, also over those after it.
//
// Positions are taken in splits of fixed size. A split is a softmax of its own: all scores, their
// maximum, exponentials, values; splits are merged in order (Milakov & Gimelshein 2018,
// arXiv:1805.02867), so that those of a long context may be computed by several threads.
//
// A query's arithmetic is fixed by its own position alone: scores in the order of head elements,
// one maximum and one sum a split, values added by ascending position. Queries are handled together
// only to read each key and value once. (Converting a page to floats once for 48 queries gained
// nothing.)
#pragma once

#include "kernels.h"
#include "kv_parts.h"
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

struct QueryTile {
    int count;
    const float* q[kAttendQueries];  // (head_dim,)
    float* out[kAttendQueries];
    int begin[kAttendQueries], end[kAttendQueries];  // the positions that it attends to
    float* peak;                                     // (count,) largest score, before scaling
    float* mass;                                     // (count,) sum of exponentials
    float* values;                                   // (count, head_dim), unnormalised output
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
        : at_(half), end_(half ? half + kv_part_bytes(Part::kType, head_dim) / 2 : half) {}
    // Prefetches two lines. Call it every kEvery of the 2 * head_dim / kWide steps that a query
    // group takes over a half.
    static constexpr int kEvery = (Part::kType == KvType::kF16 ? 4 : 8) / kWide;
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

// Scores of N queries: one chain of products over the head, or, with scales, over each block of it.
template <int N, typename Part>
inline void page_scores(QueryTile& tile, int first, int page, const Part& part, int head_dim,
                        Prefetcher<Part>& prefetcher) {
    constexpr bool kScaled = Part::kType != KvType::kF16;
    const int chain = kScaled ? kBlock : head_dim;
    const float* q[N];
    for (int i = 0; i < N; ++i) q[i] = tile.q[first + i];
    for (int from = 0; from < kPageTokens; from += kWide * 16) {
        for (int begin = 0; begin < head_dim; begin += chain) {
            V16 acc[N][kWide];
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                for (int j = 0; j < kWide; ++j) acc[i][j] = splat(0.0f);
            }
            for (int d = begin; d < begin + chain;) {
                prefetcher.step();
#pragma GCC unroll 8
                for (int step = 0; step < Prefetcher<Part>::kEvery; ++step, ++d) {
                    V16 k[kWide];
                    for (int j = 0; j < kWide; ++j) k[j] = part.keys(d, from + j * 16);
#pragma GCC unroll 8
                    for (int i = 0; i < N; ++i) {
                        const V16 one = splat(q[i][d]);
                        for (int j = 0; j < kWide; ++j) acc[i][j] = fma(one, k[j], acc[i][j]);
                    }
                }
            }
            for (int j = 0; j < kWide; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < N; ++i) {
                    float* score = page_weights(tile, first + i, page) + from + j * 16;
                    if constexpr (kScaled) {
                        const V16 scales = part.key_scales(begin / kBlock, from + j * 16);
                        const V16 before = begin == 0 ? splat(0.0f) : load(score);
                        acc[i][j] = fma(acc[i][j], scales, before);
                    }
                    store(score, acc[i][j]);
                }
            }
        }
    }
}

// Adds weights[from..to) times the values of those positions, Wide vectors of the head from d on.
// `weights` is (N, stride).
template <int N, int Wide, typename Part>
inline void add_value_columns(QueryTile& tile, int first, const float* weights, int stride,
                              const Part& part, int head_dim, int d, int from, int to,
                              Prefetcher<Part>& prefetcher) {
    V16 acc[N][Wide];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < Wide; ++j) {
            acc[i][j] = load(tile.values + (first + i) * head_dim + d + j * 16);
        }
    }
    const auto add = [&](int t) __attribute__((always_inline)) {
        V16 v[Wide];
        for (int j = 0; j < Wide; ++j) v[j] = part.values(t, d + j * 16);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            const V16 w = splat(weights[i * stride + t]);
            for (int j = 0; j < Wide; ++j) acc[i][j] = fma(w, v[j], acc[i][j]);
        }
    };
    constexpr int kEvery = Prefetcher<Part>::kEvery;
    int t = from;
    for (; t + kEvery <= to; t += kEvery) {
        prefetcher.step();
#pragma GCC unroll 8
        for (int step = 0; step < kEvery; ++step) add(t + step);
    }
    for (; t < to; ++t) add(t);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < Wide; ++j) {
            store(tile.values + (first + i) * head_dim + d + j * 16, acc[i][j]);
        }
    }
}

// A block of the head at a time. Scales join the weights, so that codes are used as they are.
template <int N, typename Part>
inline void add_values(QueryTile& tile, int first, int page, const Part& part, int head_dim,
                       int from, int to, Prefetcher<Part>& prefetcher) {
    const float* weights = page_weights(tile, first, page);
    int stride = kSplitTokens;
    alignas(64) float scaled[N * kPageTokens];
    for (int d = 0; d < head_dim; d += kBlock) {
        if constexpr (Part::kType != KvType::kF16) {
            for (int j = 0; j < kPageTokens; j += 16) {
                const V16 scales = part.value_scales(d / kBlock, j);
                for (int i = 0; i < N; ++i) {
                    const V16 w = load(page_weights(tile, first + i, page) + j);
                    store(scaled + i * kPageTokens + j, w * scales);
                }
            }
            weights = scaled;
            stride = kPageTokens;
        }
        int column = d;
        if (kWide == 2 && column + 32 <= head_dim) {
            add_value_columns<N, 2>(tile, first, weights, stride, part, head_dim, d, from, to,
                                    prefetcher);
            continue;
        }
        for (; column < head_dim && column < d + kBlock; column += 16) {
            add_value_columns<N, 1>(tile, first, weights, stride, part, head_dim, column, from, to,
                                    prefetcher);
        }
    }
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

// The positions of a page or a split that a query attends to: [from, to), counted from the first
// position of the page or split.
struct PositionRange {
    int from, to;
    bool any() const { return from < to; }
};

inline PositionRange visible_positions(const QueryTile& tile, int i, int base, int positions) {
    const int from = tile.begin[i] - base, to = tile.end[i] - base;
    return {from < 0 ? 0 : from, to > positions ? positions : to};
}
inline PositionRange visible_in_page(const QueryTile& tile, int i, int page) {
    return visible_positions(tile, i, page * kPageTokens, kPageTokens);
}

// Masks the scores of a vector's lanes outside [from, to).
inline void mask_scores(float* scores, int from, int to) {
    for (int lane = 0; lane < 16; ++lane) {
        if (lane < from || lane >= to) scores[lane] = -__builtin_inff();
    }
}

// Caps scores in n lanes, a multiple of 16. `scale` has not multiplied them yet.
inline void cap_scores(float* scores, int n, float scale, float soft_cap) {
    const V16 inner = splat(scale / soft_cap), outer = splat(soft_cap / scale);
    for (int j = 0; j < n; j += 16) store(scores + j, tanh(load(scores + j) * inner) * outer);
}

// Turns a query's scores of a split into exponentials, with their maximum and their sum.
inline void exponentiate(QueryTile& tile, int i, int split, const AttendArgs& a) {
    const PositionRange visible = visible_positions(tile, i, split * kSplitTokens, kSplitTokens);
    if (!visible.any()) {
        tile.peak[i] = -__builtin_inff();
        tile.mass[i] = 0.0f;
        return;
    }
    float* w = tile.weights + i * kSplitTokens;
    const int from = visible.from / 16 * 16, last = (visible.to - 1) / 16 * 16;
    if (a.soft_cap > 0.0f) cap_scores(w + from, last + 16 - from, a.scale, a.soft_cap);
    if (visible.from > from) mask_scores(w + from, visible.from - from, 16);
    if (visible.to < last + 16) mask_scores(w + last, 0, visible.to - last);
    V16 peaks = load(w + from);
    for (int j = from + 16; j <= last; j += 16) peaks = max(peaks, load(w + j));
    const float peak = reduce_max(peaks);
    const V16 top = splat(peak), factor = splat(a.scale * kLog2E);
    V16 sum = splat(0.0f);
    for (int j = from; j <= last; j += 16) {
        const V16 e = exp2_of_at_most_0((load(w + j) - top) * factor);
        store(w + j, e);
        sum = sum + e;
    }
    tile.peak[i] = peak;
    tile.mass[i] = reduce_add(sum);
}

// The queries [begin, end) that attend to a page. Queries are in position order, so these are
// neighbours.
struct QueryRange {
    int begin, end;
};

inline QueryRange queries_of_page(const QueryTile& tile, int page) {
    int begin = 0, end = tile.count;
    while (begin < end && !visible_in_page(tile, begin, page).any()) ++begin;
    while (end > begin && !visible_in_page(tile, end - 1, page).any()) --end;
    return {begin, end};
}

template <typename Part>
inline void score_page(QueryTile& tile, QueryRange queries, int page, const Part& part,
                       int head_dim, Prefetcher<Part> prefetcher) {
    for_queries(queries.end - queries.begin, [&](auto n, int first) {
        page_scores<decltype(n)::value>(tile, queries.begin + first, page, part, head_dim,
                                        prefetcher);
    });
}

// Handles positions that all queries see together, and earlier and later positions for each query
// separately. For each query, adds values by ascending position.
template <typename Part>
inline void add_page(QueryTile& tile, QueryRange queries, int page, const Part& part, int head_dim,
                     Prefetcher<Part> prefetcher) {
    const auto add_of_one = [&](int i, int from, int to) {
        if (from < to) add_values<1>(tile, i, page, part, head_dim, from, to, prefetcher);
    };
    const int from = visible_in_page(tile, queries.end - 1, page).from;
    const int to = visible_in_page(tile, queries.begin, page).to;
    if (from >= to) {
        for (int i = queries.begin; i < queries.end; ++i) {
            const PositionRange s = visible_in_page(tile, i, page);
            add_of_one(i, s.from, s.to);
        }
        return;
    }
    for (int i = queries.begin; i < queries.end; ++i) {
        add_of_one(i, visible_in_page(tile, i, page).from, from);
    }
    for_queries(queries.end - queries.begin, [&](auto n, int first) {
        add_values<decltype(n)::value>(tile, queries.begin + first, page, part, head_dim, from, to,
                                       prefetcher);
    });
    for (int i = queries.begin; i < queries.end; ++i)
        add_of_one(i, to, visible_in_page(tile, i, page).to);
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
        const int position = a.first_position + token;
        const int last = a.causal ? position : a.last_position;
        const bool windowed = a.window > 0;
        tile.begin[i] = windowed && position >= a.window ? position + 1 - a.window : 0;
        tile.end[i] = windowed && last - position >= a.window ? position + a.window : last + 1;
    }
    return tile;
}

// Makes the tile keep its sums in `part`, attend_part floats.
inline void place_sums(QueryTile& tile, float* part, int head_dim) {
    tile.values = part;
    tile.peak = part + static_cast<int64_t>(tile.count) * head_dim;
    tile.mass = tile.peak + tile.count;
}

// The layer's and head's part of the sequence's page number `page`.
inline const uint8_t* part_of(const AttendArgs& a, int page) {
    return a.kv + a.pages[page - a.first_page] * a.page_stride;
}

// Computes one split from zero. `next` is a part that will be needed afterwards, or null.
template <typename Part>
inline void run_split(QueryTile& tile, const AttendArgs& a, int split, const uint8_t* next) {
    const int dim = a.head_dim;
    const int64_t half = kv_part_bytes(Part::kType, dim) / 2;
    const int begin = tile.begin[0] / kPageTokens;
    const int end = (tile.end[tile.count - 1] - 1) / kPageTokens + 1;
    const int from = split * kSplitPages > begin ? split * kSplitPages : begin;
    const int to = (split + 1) * kSplitPages < end ? (split + 1) * kSplitPages : end;
    for (int page = from; page < to; ++page) {
        const Part part(part_of(a, page), dim);
        const Prefetcher<Part> prefetcher(
            page + 1 < to ? part_of(a, page + 1) : part_of(a, from) + half, dim);
        score_page(tile, queries_of_page(tile, page), page, part, dim, prefetcher);
    }
    for (int i = 0; i < tile.count; ++i) exponentiate(tile, i, split, a);
    for (int i = 0; i < tile.count * dim; ++i) tile.values[i] = 0.0f;
    for (int page = from; page < to; ++page) {
        const Part part(part_of(a, page), dim);
        const Prefetcher<Part> prefetcher(page + 1 < to ? part_of(a, page + 1) + half : next, dim);
        add_page(tile, queries_of_page(tile, page), page, part, dim, prefetcher);
    }
}

// Adds the sums of one more split to `total`. A split that a query does not attend to changes
// nothing for it, so its arithmetic does not depend on the splits of its neighbours.
inline void merge_split(const QueryTile& total, const QueryTile& part, int head_dim, float scale) {
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
        const auto decay = [&](float from) {
            return exp2_of_at_most_0(splat((from - peak) * (scale * kLog2E)));
        };
        const V16 keep = decay(total.peak[i]), take = decay(part.peak[i]);
        total.mass[i] = total.mass[i] * first_lane(keep) + part.mass[i] * first_lane(take);
        total.peak[i] = peak;
        for (int d = 0; d < head_dim; d += 16) {
            store(sum + d, fma(load(more + d), take, load(sum + d) * keep));
        }
    }
}

// A sink joins the sum of exponentials here, once for each query. If it is much higher than all
// scores, exp returns its highest value, 2e38, and the output is as good as zero.
inline void write_output(const QueryTile& tile, const AttendArgs& a, int first_query) {
    const int head_dim = a.head_dim;
    for (int i = 0; i < tile.count; ++i) {
        V16 mass = splat(tile.mass[i]);
        if (a.sinks != nullptr) {
            const float sink = a.sinks[(first_query + i) % a.group];
            mass = mass + exp(splat(sink - tile.peak[i] * a.scale));
        }
        for (int d = 0; d < head_dim; d += 16) {
            store(tile.out[i] + d, load(tile.values + i * head_dim + d) / mass);
        }
    }
}

inline int first_split(const QueryTile& tile) { return tile.begin[0] / kSplitTokens; }
inline int last_split(const QueryTile& tile) {
    return (tile.end[tile.count - 1] - 1) / kSplitTokens;
}

template <typename Part>
inline void attend_parts(const AttendArgs& a) {
    const int queries = a.tokens * a.group;
    const int tiles = (queries + kAttendQueries - 1) / kAttendQueries;
    for (int i = 0; i < tiles; ++i) {  // tiles of nearly equal size
        const int first = queries * i / tiles, last = queries * (i + 1) / tiles;
        QueryTile total = make_tile(a, first, last - first);
        float* total_part = a.scratch + kAttendQueries * kSplitTokens;
        float* split_part = total_part + attend_part(kAttendQueries, a.head_dim);
        QueryTile part = total;
        place_sums(total, total_part, a.head_dim);
        place_sums(part, split_part, a.head_dim);
        const int begin = first_split(total), end = last_split(total) + 1;
        for (int split = begin; split < end; ++split) {
            const uint8_t* next = split + 1 < end ? part_of(a, (split + 1) * kSplitPages) : a.next;
            run_split<Part>(split == begin ? total : part, a, split, next);
            if (split > begin) merge_split(total, part, a.head_dim, a.scale);
        }
        write_output(total, a, first);
    }
}

void attend(const AttendArgs& a) {
    a.kv_type == KvType::kF16 ? attend_parts<F16Part>(a) : attend_parts<Q8Part>(a);
}

void attend_split(const AttendArgs& a, int split, float* part) {
    QueryTile tile = make_tile(a, 0, a.tokens * a.group);
    place_sums(tile, part, a.head_dim);
    a.kv_type == KvType::kF16 ? run_split<F16Part>(tile, a, split, a.next)
                              : run_split<Q8Part>(tile, a, split, a.next);
}

void attend_merge(const AttendArgs& a, float* parts) {
    QueryTile total = make_tile(a, 0, a.tokens * a.group);
    QueryTile part = total;
    const int64_t size = attend_part(total.count, a.head_dim);
    const int first = first_split(total);
    place_sums(total, parts + first * size, a.head_dim);
    for (int split = first + 1; split <= last_split(total); ++split) {
        place_sums(part, parts + split * size, a.head_dim);
        merge_split(total, part, a.head_dim, a.scale);
    }
    write_output(total, a, 0);
}

template <typename Part>
inline void store_parts(const StoreKvArgs& a) {
    for (int i = 0; i < a.tokens; ++i) {
        Part::store_key(a.part, a.head_dim, a.position + i, a.k + i * a.stride);
        Part::store_value(a.part, a.head_dim, a.position + i, a.v + i * a.stride);
    }
}

void store_kv(const StoreKvArgs& a) {
    a.kv_type == KvType::kF16 ? store_parts<F16Part>(a) : store_parts<Q8Part>(a);
}

}  // namespace
