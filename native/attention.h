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

#include "attention_tile.h"
#include "kernels.h"
#include "kv_parts.h"
#include "latents.h"
#include "simd.h"

namespace {

using namespace heddle;

// Scores of N queries: one chain of products over the head.
template <int N>
inline void page_scores_of_keys(QueryTile& tile, int first, int page, const F16Part& part,
                                int head_dim, Prefetcher<F16Part>& prefetcher) {
    const float* q[N];
    for (int i = 0; i < N; ++i) q[i] = tile.q[first + i];
    for (int from = 0; from < kPageTokens; from += kWide * 16) {
        V16 acc[N][kWide];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < kWide; ++j) acc[i][j] = splat(0.0f);
        }
        for (int d = 0; d < head_dim;) {
            prefetcher.step();
#pragma GCC unroll 8
            for (int step = 0; step < Prefetcher<F16Part>::kEvery; ++step, ++d) {
                V16 k[kWide];
                for (int j = 0; j < kWide; ++j) k[j] = part.keys(d, from + j * 16);
#pragma GCC unroll 8
                for (int i = 0; i < N; ++i) {
                    const V16 one = splat(q[i][d]);
                    for (int j = 0; j < kWide; ++j) acc[i][j] = fma(one, k[j], acc[i][j]);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            float* scores = page_weights(tile, first + i, page) + from;
            for (int j = 0; j < kWide; ++j) store(scores + j * 16, acc[i][j]);
        }
    }
}

// Scores of N queries with codes: the dot products of blocks are exact integers. A score is a chain
// over the blocks of (dot product * the query's scale) * the key's scale.
template <int N, typename Part>
inline void page_scores_of_codes(QueryTile& tile, int first, int page, const Part& part,
                                 int head_dim, Prefetcher<Part>& prefetcher) {
    const int blocks = head_dim / kBlock;
    const int8_t* codes = tile.codes.codes + first * head_dim;
    const float* scales = tile.codes.scales + first * blocks;
    const int32_t* sums = tile.codes.sums + first * blocks;
    for (int from = 0; from < kPageTokens; from += kWide * 16) {
        for (int block = 0; block < blocks; ++block) {
            I16 acc[N][kWide];
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                for (int j = 0; j < kWide; ++j)
                    acc[i][j] = Part::first_of_keys(sums[i * blocks + block]);
            }
            prefetcher.step();
            for (int d = block * kBlock; d < (block + 1) * kBlock; d += 8) {
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    if (half == 0 || Prefetcher<Part>::kInBothHalves) prefetcher.step();
                    decltype(part.key_codes(0, 0, 0)) k[kWide];
                    for (int j = 0; j < kWide; ++j) k[j] = part.key_codes(d, half, from + j * 16);
#pragma GCC unroll 8
                    for (int i = 0; i < N; ++i) {
                        const int8_t* four = codes + i * head_dim + d + 4 * half;
                        for (int j = 0; j < kWide; ++j) acc[i][j] = add_dot4(acc[i][j], k[j], four);
                    }
                }
            }
            for (int j = 0; j < kWide; ++j) {
                const V16 of_keys = part.key_scales(block, from + j * 16);
#pragma GCC unroll 8
                for (int i = 0; i < N; ++i) {
                    float* score = page_weights(tile, first + i, page) + from + j * 16;
                    const V16 before = block == 0 ? splat(0.0f) : load(score);
                    const V16 dot = to_floats(acc[i][j]) * splat(scales[i * blocks + block]);
                    store(score, fma(dot, of_keys, before));
                }
            }
        }
    }
}

template <int N, typename Part>
inline void page_scores(QueryTile& tile, int first, int page, const Part& part, int head_dim,
                        Prefetcher<Part>& prefetcher) {
    if constexpr (Part::kLatents) {
        page_scores_of_latents<N>(tile, first, page, part, head_dim, prefetcher);
    } else if constexpr (Part::kScaled) {
        page_scores_of_codes<N>(tile, first, page, part, head_dim, prefetcher);
    } else {
        page_scores_of_keys<N>(tile, first, page, part, head_dim, prefetcher);
    }
}

// Adds weights[from..to) times the values of those positions, Wide vectors of the head from d on.
// `weights` is (N, stride).
template <int N, int Wide, typename Part>
inline void add_value_columns(QueryTile& tile, int first, const float* weights, int stride,
                              const Part& part, int value_dim, int d, int from, int to,
                              Prefetcher<Part>& prefetcher) {
    V16 acc[N][Wide];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < Wide; ++j) {
            acc[i][j] = load(tile.values + (first + i) * value_dim + d + j * 16);
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
            store(tile.values + (first + i) * value_dim + d + j * 16, acc[i][j]);
        }
    }
}

// A block of the head at a time. Scales join the weights, so that codes are used as they are.
template <int N, typename Part>
inline void add_values(QueryTile& tile, int first, int page, const Part& part, int value_dim,
                       int from, int to, Prefetcher<Part>& prefetcher) {
    const float* weights = page_weights(tile, first, page);
    int stride = kSplitTokens;
    alignas(64) float scaled[N * kPageTokens];
    for (int d = 0; d < value_dim; d += kBlock) {
        if constexpr (Part::kScaled) {
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
        if (kWide == 2 && column + 32 <= value_dim) {
            add_value_columns<N, 2>(tile, first, weights, stride, part, value_dim, d, from, to,
                                    prefetcher);
            continue;
        }
        for (; column < value_dim && column < d + kBlock; column += 16) {
            add_value_columns<N, 1>(tile, first, weights, stride, part, value_dim, column, from, to,
                                    prefetcher);
        }
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

// Adds what joins the scores in n lanes, a multiple of 16.
inline void add_bias(float* scores, const float* bias, int n) {
    for (int j = 0; j < n; j += 16) store(scores + j, load(scores + j) + load(bias + j));
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
    if (a.bias != nullptr)
        add_bias(w + from, tile.bias[i] + split * kSplitTokens + from, last + 16 - from);
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

// Adds the values of N queries with codes. The weights of a page's positions, multiplied by the
// scales of the values, become int8 codes by the rule of activations: dot products are exact
// integers. None is negative. A query's weights outside of what it sees are zero.
template <int N, typename Part>
inline void add_value_codes(QueryTile& tile, int first, int page, const Part& part, int value_dim,
                            Prefetcher<Part>& prefetcher) {
    static_assert(kPageTokens == kBlock);
    alignas(64) int8_t codes[N][kBlock];
    for (int block = 0; block < value_dim; block += kBlock) {
        float scales[N];
        int32_t begin[N];
        const V16 of_values[2] = {part.value_scales(block / kBlock, 0),
                                  part.value_scales(block / kBlock, 16)};
        for (int i = 0; i < N; ++i) {
            const PositionRange seen = visible_in_page(tile, first + i, page);
            const float* w = page_weights(tile, first + i, page);
            V16 low = load(w) * of_values[0], high = load(w + 16) * of_values[1];
            if (seen.from > 0 || seen.to < kPageTokens) {
                float x[kBlock];
                store(x, low);
                store(x + 16, high);
                for (int t = 0; t < seen.from; ++t) x[t] = 0.0f;
                for (int t = seen.to; t < kPageTokens; ++t) x[t] = 0.0f;
                low = load(x);
                high = load(x + 16);
            }
            scales[i] = quantise_block(low, high, codes[i]) / 127.0f;
            begin[i] = Part::first_of_values(codes[i]);
        }
        prefetcher.step();
        for (int d = block; d < block + kBlock; d += kWide * 16) {
            I16 acc[N][kWide];
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                for (int j = 0; j < kWide; ++j) acc[i][j] = splat_int(begin[i]);
            }
            for (int t = 0; t < kPageTokens; t += 8) {
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    if (half == 0 || Prefetcher<Part>::kInBothHalves) prefetcher.step();
                    decltype(part.value_codes(0, 0, 0)) v[kWide];
                    for (int j = 0; j < kWide; ++j) v[j] = part.value_codes(t, half, d + j * 16);
#pragma GCC unroll 8
                    for (int i = 0; i < N; ++i) {
                        const int8_t* four = codes[i] + t + 4 * half;
                        for (int j = 0; j < kWide; ++j) acc[i][j] = add_dot4(acc[i][j], v[j], four);
                    }
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                float* values = tile.values + (first + i) * value_dim + d;
                for (int j = 0; j < kWide; ++j) {
                    const V16 before = load(values + j * 16);
                    store(values + j * 16, fma(to_floats(acc[i][j]), splat(scales[i]), before));
                }
            }
        }
    }
}

// Handles positions that all queries see together, and earlier and later positions for each query
// separately. For each query, adds values by ascending position.
template <typename Part>
inline void add_page_of_floats(QueryTile& tile, QueryRange queries, int page, const Part& part,
                               int value_dim, Prefetcher<Part> prefetcher) {
    const auto add_of_one = [&](int i, int from, int to) {
        if (from < to) add_values<1>(tile, i, page, part, value_dim, from, to, prefetcher);
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
        add_values<decltype(n)::value>(tile, queries.begin + first, page, part, value_dim, from, to,
                                       prefetcher);
    });
    for (int i = queries.begin; i < queries.end; ++i)
        add_of_one(i, to, visible_in_page(tile, i, page).to);
}

template <typename Part>
inline void add_page(QueryTile& tile, QueryRange queries, int page, const Part& part, int value_dim,
                     Prefetcher<Part> prefetcher) {
    if constexpr (Part::kScaled && !Part::kLatents) {
        for_queries(queries.end - queries.begin, [&](auto n, int first) {
            add_value_codes<decltype(n)::value>(tile, queries.begin + first, page, part, value_dim,
                                                prefetcher);
        });
    } else {
        add_page_of_floats(tile, queries, page, part, value_dim, prefetcher);
    }
}

// If keys are codes, writes those of the tile's queries, rotated as the keys are, behind the
// scratch of its sums.
template <typename Part>
inline void quantise_queries(QueryTile& tile, const AttendArgs& a) {
    if constexpr (!Part::kScaled || Part::kLatents) return;
    float* room = a.scratch + attend_scratch(a.value_dim) - attend_codes(a.value_dim);
    const int blocks = a.head_dim / kBlock;
    tile.codes.scales = room;
    tile.codes.sums = reinterpret_cast<int32_t*>(room + kAttendQueries * blocks);
    tile.codes.codes = reinterpret_cast<int8_t*>(room + 2 * kAttendQueries * blocks);
    alignas(64) float rotated[kWidestHead];
    for (int i = 0; i < tile.count * blocks; ++i) {
        const float* x = tile.q[i / blocks];
        if (a.kv_type == KvType::kQ4) {
            if (i % blocks == 0) rotate_head(x, a.head_dim, rotated);
            x = rotated;
        }
        int8_t* codes = tile.codes.codes + i * kBlock;
        tile.codes.scales[i] = quantise_block(x + i % blocks * kBlock, codes) / 127.0f;
        tile.codes.sums[i] = sum_of_16(codes) + sum_of_16(codes + 16);
    }
}

inline QueryTile make_tile(const AttendArgs& a, int first_query, int count) {
    QueryTile tile;
    tile.count = count;
    tile.rank = a.value_dim;
    tile.weights = a.scratch;
    for (int i = 0; i < count; ++i) {
        const int token = (first_query + i) / a.group, head = (first_query + i) % a.group;
        const int64_t query_dim = a.turned == nullptr ? a.head_dim : a.value_dim;
        tile.q[i] = a.q + token * a.q_stride + head * query_dim;
        tile.out[i] = a.out + token * a.out_stride + static_cast<int64_t>(head) * a.value_dim;
        if (a.turned != nullptr) {
            tile.turned[i] = a.turned + token * a.turned_stride + head * a.turned_head;
        }
        const int position = a.first_position + token;
        if (a.bias != nullptr) tile.bias[i] = a.bias + head * a.bias_stride - position;
        const int last = a.causal ? position : a.last_position;
        const bool windowed = a.window > 0;
        tile.begin[i] = first_seen(position, a.window, a.aligned);
        tile.end[i] = windowed && last - position >= a.window ? position + a.window : last + 1;
        if (a.runs == nullptr) continue;
        const int32_t* run = a.runs + static_cast<int64_t>(token) * a.run_stride;
        if (!a.causal) tile.begin[i] = run[0];
        tile.end[i] = a.causal && run[1] < tile.end[i] ? tile.end[i] : run[1];
    }
    return tile;
}

// Makes the tile keep its sums in `part`, attend_part floats.
inline void place_sums(QueryTile& tile, float* part, int value_dim) {
    tile.values = part;
    tile.peak = part + static_cast<int64_t>(tile.count) * value_dim;
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
    const int64_t values = Part::kLatents ? 0 : kv_half_bytes(Part::kType, dim);  // their offset
    const int begin = tile.begin[0] / kPageTokens;
    const int end = (tile.end[tile.count - 1] - 1) / kPageTokens + 1;
    const int from = split * kSplitPages > begin ? split * kSplitPages : begin;
    const int to = (split + 1) * kSplitPages < end ? (split + 1) * kSplitPages : end;
    for (int page = from; page < to; ++page) {
        const Part part(part_of(a, page), dim);
        const Prefetcher<Part> prefetcher(
            page + 1 < to ? part_of(a, page + 1) : part_of(a, from) + values, dim);
        score_page(tile, queries_of_page(tile, page), page, part, dim, prefetcher);
    }
    for (int i = 0; i < tile.count; ++i) exponentiate(tile, i, split, a);
    for (int i = 0; i < tile.count * a.value_dim; ++i) tile.values[i] = 0.0f;
    for (int page = from; page < to; ++page) {
        const Part part(part_of(a, page), dim);
        const Prefetcher<Part> prefetcher(page + 1 < to ? part_of(a, page + 1) + values : next,
                                          dim);
        add_page(tile, queries_of_page(tile, page), page, part, a.value_dim, prefetcher);
    }
}

// Adds the sums of one more split to `total`. A split that a query does not attend to changes
// nothing for it, so its arithmetic does not depend on the splits of its neighbours.
inline void merge_split(const QueryTile& total, const QueryTile& part, int value_dim, float scale) {
    for (int i = 0; i < total.count; ++i) {
        if (part.mass[i] == 0.0f) continue;
        float* sum = total.values + i * value_dim;
        const float* more = part.values + i * value_dim;
        if (total.mass[i] == 0.0f) {
            std::memcpy(sum, more, static_cast<size_t>(value_dim) * sizeof(float));
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
        for (int d = 0; d < value_dim; d += 16) {
            store(sum + d, fma(load(more + d), take, load(sum + d) * keep));
        }
    }
}

// A sink joins the sum of exponentials here, once for each query. If it is much higher than all
// scores, exp returns its highest value, 2e38, and the output is as good as zero.
inline void write_output(const QueryTile& tile, const AttendArgs& a, int first_query) {
    const int value_dim = a.value_dim;
    for (int i = 0; i < tile.count; ++i) {
        V16 mass = splat(tile.mass[i]);
        if (a.sinks != nullptr) {
            const float sink = a.sinks[(first_query + i) % a.group];
            mass = mass + exp(splat(sink - tile.peak[i] * a.scale));
        }
        for (int d = 0; d < value_dim; d += 16) {
            store(tile.out[i] + d, load(tile.values + i * value_dim + d) / mass);
        }
        if (a.kv_type == KvType::kQ4) rotate_head(tile.out[i], value_dim, tile.out[i]);
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
        quantise_queries<Part>(total, a);
        float* total_part = a.scratch + kAttendQueries * kSplitTokens;
        float* split_part = total_part + attend_part(kAttendQueries, a.value_dim);
        QueryTile part = total;
        place_sums(total, total_part, a.value_dim);
        place_sums(part, split_part, a.value_dim);
        const int begin = first_split(total), end = last_split(total) + 1;
        for (int split = begin; split < end; ++split) {
            const uint8_t* next = split + 1 < end ? part_of(a, (split + 1) * kSplitPages) : a.next;
            run_split<Part>(split == begin ? total : part, a, split, next);
            if (split > begin) merge_split(total, part, a.value_dim, a.scale);
        }
        write_output(total, a, first);
    }
}

// Calls f with a null pointer to the type of the parts that are read.
template <typename F>
inline void with_read_part(const AttendArgs& a, F f) {
    if (a.turned == nullptr) return with_part(a.kv_type, f);
    a.kv_type == KvType::kF16 ? f(static_cast<F16Latents*>(nullptr))
                              : f(static_cast<Q8Latents*>(nullptr));
}

template <typename Part>
inline void attend_whole(const AttendArgs& a, Part*) {
    attend_parts<Part>(a);
}

void attend(const AttendArgs& a) {
    with_read_part(a, [&](auto* part) { attend_whole(a, part); });
}

template <typename Part>
inline void run_split_of(QueryTile& tile, const AttendArgs& a, int split, Part*) {
    quantise_queries<Part>(tile, a);
    run_split<Part>(tile, a, split, a.next);
}

void attend_split(const AttendArgs& a, int split, float* part) {
    QueryTile tile = make_tile(a, 0, a.tokens * a.group);
    place_sums(tile, part, a.value_dim);
    with_read_part(a, [&](auto* kind) { run_split_of(tile, a, split, kind); });
}

void attend_merge(const AttendArgs& a, float* parts) {
    QueryTile total = make_tile(a, 0, a.tokens * a.group);
    QueryTile part = total;
    const int64_t size = attend_part(total.count, a.value_dim);
    const int first = first_split(total);
    place_sums(total, parts + first * size, a.value_dim);
    for (int split = first + 1; split <= last_split(total); ++split) {
        place_sums(part, parts + split * size, a.value_dim);
        merge_split(total, part, a.value_dim, a.scale);
    }
    write_output(total, a, 0);
}

template <typename Part>
inline void store_parts(const StoreKvArgs& a, Part*) {
    for (int i = 0; i < a.tokens; ++i) {
        Part::store_key(a.part, a.head_dim, a.position + i, a.k + i * a.stride);
        Part::store_value(a.part, a.head_dim, a.position + i, a.v + i * a.stride);
    }
}

void store_kv(const StoreKvArgs& a) {
    with_part(a.kv_type, [&](auto* part) { store_parts(a, part); });
}

}  // namespace
