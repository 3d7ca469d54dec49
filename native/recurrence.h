// Kernels of recurrent layers. Include this file only in kernels.cpp.
//
// A recurrence is computed token by token, in prompts too. So a state's bits do not depend on the
// chunks of a prompt. The matrix of a head is held in blocks of kStateColumns columns, and a block
// of 16 KiB stays in the first-level cache while all tokens of a chunk pass over it. One pass over
// the block adds what token t stores and sums up what token t + 1 reads.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using heddle::ConvArgs;
using heddle::LinearAttendArgs;
using heddle::RwkvArgs;
using heddle::SelectiveScanArgs;
using heddle::ShiftArgs;

void layer_norm(const float* x, const float* w, const float* b, int n, float eps, float* out);

inline V16 sigmoid(V16 x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// ln(1 + exp(x)) = max(x, 0) + ln(1 + u) with u = exp(-|x|). ln(1 + u) is 2 artanh(s) with
// s = u / (2 + u) <= 1/3: the odd series up to s**15, within 2 ulp. NaN of NaN.
inline V16 softplus(V16 x) {
    const V16 u = exp(splat(0.0f) - abs(x));
    const V16 s = u / (splat(2.0f) + u), z = s * s;
    V16 p = splat(1.0f / 15);
    p = fma(p, z, splat(1.0f / 13));
    p = fma(p, z, splat(1.0f / 11));
    p = fma(p, z, splat(1.0f / 9));
    p = fma(p, z, splat(1.0f / 7));
    p = fma(p, z, splat(1.0f / 5));
    p = fma(p, z, splat(1.0f / 3));
    p = fma(p, z, splat(1.0f));
    return max(splat(0.0f), x) + (s + s) * p;
}

template <typename F>
inline void each(const float* x, int n, float* out, F function) {
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, function(load(x + i), i));
    if (i < n) store_partial(out + i, n - i, function(load_partial(x + i, n - i, 0.0f), i));
}

void sigmoid_all(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return sigmoid(a); });
}

void squared_relu(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) {
        const V16 positive = max(splat(0.0f), a);
        return positive * positive;
    });
}

void step_size(const float* x, const float* bias, int n, float least, float most, float* out) {
    each(x, n, out, [=](V16 a, int i) {
        const V16 b = n - i < 16 ? load_partial(bias + i, n - i, 0.0f) : load(bias + i);
        return min(splat(most), max(splat(least), softplus(a + b)));
    });
}

// `n` of the 16 columns of a vector, all of them if Whole.
template <bool Whole>
inline V16 get(const float* p, int n) {
    return Whole ? load(p) : load_partial(p, n, 0.0f);
}
template <bool Whole>
inline void put(float* p, int n, V16 a) {
    if (Whole) {
        store(p, a);
    } else {
        store_partial(p, n, a);
    }
}

// Columns [c, c + n) of token t.
template <bool Whole>
inline void conv_columns(const ConvArgs& a, int t, int c, int n) {
    const int before = a.taps - 1;
    V16 sum = a.bias == nullptr ? splat(0.0f) : get<Whole>(a.bias + c, n);
    for (int tap = 0; tap < a.taps; ++tap) {
        const int row = t + tap - before;
        const float* from = row < 0 ? a.state + (t + tap) * a.state_stride : a.x + row * a.stride;
        sum =
            fma(get<Whole>(from + c, n), get<Whole>(a.filters + tap * a.state_stride + c, n), sum);
    }
    if (a.silu) sum = sum * sigmoid(sum);
    put<Whole>(a.out + t * a.stride + c, n, sum);
}

void conv(const ConvArgs& a) {
    for (int t = 0; t < a.tokens; ++t) {
        int c = 0;
        for (; c + 16 <= a.columns; c += 16) conv_columns<true>(a, t, c, 16);
        if (c < a.columns) conv_columns<false>(a, t, c, a.columns - c);
    }
}

inline float dot(const float* x, const float* y, int n) {
    V16 sum = splat(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) sum = fma(load(x + i), load(y + i), sum);
    if (i < n) sum = fma(load_partial(x + i, n - i, 0.0f), load_partial(y + i, n - i, 0.0f), sum);
    return reduce_add(sum);
}

// Sums over the rows of a matrix S, for V * 16 of its columns: of keys[i] * S[i] and of
// queries[i] * S[i].
template <int V>
struct RowSums {
    V16 read[V], out[V];
    void clear() {
        for (int v = 0; v < V; ++v) read[v] = out[v] = splat(0.0f);
    }
    inline void add(int v, V16 row, V16 key, V16 query) {
        read[v] = fma(row, key, read[v]);
        out[v] = fma(row, query, out[v]);
    }
};

// One block of V * 16 columns, the last vector perhaps partial unless Whole.
//
// Even and odd rows have sums of their own, so that the additions of a sum overlap.
template <int V, bool Whole>
void attend_block(const LinearAttendArgs& a, float* block, float* kept, int column, int width) {
    int n[V];  // columns of each vector
    for (int v = 0; v < V; ++v) n[v] = width - v * 16 < 16 ? width - v * 16 : 16;
    float* const decay = a.scratch;
    float* const keys = decay + a.key_dim;
    float* const queries = keys + a.key_dim;
    // Keys and queries of a token, times its decay.
    const auto prepare = [&](int t) {
        const float* k = a.k + t * a.key_stride;
        const float* q = a.q + t * a.key_stride;
        const float* d = a.decay + t * a.decay_stride;
        for (int i = 0; i < a.key_dim; ++i) {
            const float by = a.decay_of_rows ? d[i] : d[0];
            keys[i] = k[i] * by;
            queries[i] = q[i] * by;
        }
    };
    float* rows = block;  // the matrix so far
    RowSums<V> even, odd;
    even.clear();
    odd.clear();
    prepare(0);
    for (int i = 0; i < a.key_dim; i += 2) {
        const float* row = block + int64_t{i} * width;
        for (int v = 0; v < V; ++v) {
            even.add(v, get<Whole>(row + v * 16, n[v]), splat(keys[i]), splat(queries[i]));
            odd.add(v, get<Whole>(row + width + v * 16, n[v]), splat(keys[i + 1]),
                    splat(queries[i + 1]));
        }
    }
    for (int t = 0; t < a.tokens; ++t) {
        const float* k = a.k + t * a.key_stride;
        const float* d = a.decay + t * a.decay_stride;
        const V16 both = splat(dot(k, a.q + t * a.key_stride, a.key_dim));
        const V16 strength = splat(a.strength[t * a.strength_stride]);
        V16 change[V];
        for (int v = 0; v < V; ++v) {
            const int at = column + v * 16;
            const V16 value = get<Whole>(a.v + t * a.value_stride + at, n[v]);
            const V16 read = even.read[v] + odd.read[v];
            change[v] = (a.corrects ? value - read : value) * strength;
            V16 y = fma(change[v], both, even.out[v] + odd.out[v]);
            if (a.skips) y = fma(value, splat(a.skip), y);
            put<Whole>(a.out + t * a.value_stride + at, n[v], y);
        }
        for (int i = 0; i < a.key_dim; ++i) decay[i] = a.decay_of_rows ? d[i] : d[0];
        // The row after this token.
        const auto next = [&](const float* row, int i, int v) {
            const V16 old = get<Whole>(row + v * 16, n[v]) * splat(decay[i]);
            return fma(splat(k[i]), change[v], old);
        };
        if (t + 1 == a.tokens) {
            for (int i = 0; i < a.key_dim; ++i) {
                const int64_t at = int64_t{i} * width;
                for (int v = 0; v < V; ++v) {
                    put<Whole>(kept + at + v * 16, n[v], next(rows + at, i, v));
                }
            }
            return;
        }
        prepare(t + 1);
        float* const target = t < a.certain ? block : kept;
        even.clear();
        odd.clear();
        for (int i = 0; i < a.key_dim; i += 2) {
            const float* const row = rows + int64_t{i} * width;
            float* const after = target + int64_t{i} * width;
            for (int v = 0; v < V; ++v) {
                const V16 first = next(row, i, v), second = next(row + width, i + 1, v);
                put<Whole>(after + v * 16, n[v], first);
                put<Whole>(after + width + v * 16, n[v], second);
                even.add(v, first, splat(keys[i]), splat(queries[i]));
                odd.add(v, second, splat(keys[i + 1]), splat(queries[i + 1]));
            }
        }
        rows = target;
    }
}

void linear_attend(const LinearAttendArgs& a) {
    for (int column = a.first_column; column < a.last_column; column += heddle::kStateColumns) {
        const int rest = a.value_dim - column;
        const int width = rest < heddle::kStateColumns ? rest : heddle::kStateColumns;
        const int64_t at = int64_t{a.key_dim} * column;
        float* const block = a.state + at;
        float* const kept = a.kept + at;
        if (width == 32) {
            attend_block<2, true>(a, block, kept, column, width);
        } else if (width > 16) {
            attend_block<2, false>(a, block, kept, column, width);
        } else if (width == 16) {
            attend_block<1, true>(a, block, kept, column, width);
        } else {
            attend_block<1, false>(a, block, kept, column, width);
        }
    }
}

// One block of n channels from `channel` on. Each element of the state has a decay of its own, so
// their exponentials are most of the work: all of it is done in registers, state by state.
template <bool Whole>
void scan_block(const SelectiveScanArgs& a, int channel, int n) {
    const int64_t at = int64_t{a.states} * channel;
    const float* const rates = a.rates + at;
    const float* rows = a.state + at;  // the state so far
    const V16 skip = get<Whole>(a.skip + channel, n);
    for (int t = 0; t < a.tokens; ++t) {
        float* const after = (t < a.certain ? a.state : a.kept) + at;
        const float* k = a.k + int64_t{t} * a.states;
        const float* q = a.q + int64_t{t} * a.states;
        const int64_t own = t * a.stride + channel;
        const V16 value = get<Whole>(a.v + own, n), step = get<Whole>(a.step + own, n);
        const V16 change = step * value;
        V16 y = value * skip;
        for (int i = 0; i < a.states; ++i) {
            const V16 decay = exp(step * get<Whole>(rates + i * n, n));
            const V16 row = fma(get<Whole>(rows + i * n, n), decay, splat(k[i]) * change);
            put<Whole>(after + i * n, n, row);
            y = fma(row, splat(q[i]), y);
        }
        put<Whole>(a.out + own, n, y);
        rows = after;
    }
}

void selective_scan(const SelectiveScanArgs& a) {
    int channel = 0;
    for (; channel + heddle::kScanChannels <= a.channels; channel += heddle::kScanChannels) {
        scan_block<true>(a, channel, heddle::kScanChannels);
    }
    if (channel < a.channels) scan_block<false>(a, channel, a.channels - channel);
}

void token_shift(const ShiftArgs& a) {
    for (int t = 0; t < a.tokens; ++t) {
        const float* x = a.x + t * a.stride;
        const float* before = t == 0 ? a.before : x - a.stride;
        for (int part = 0; part < a.parts; ++part) {
            const float* shares = a.shares + part * a.stride;
            float* out = a.out + (t * a.parts + part) * a.stride;
            each(x, a.columns, out, [&](V16 own, int i) {
                const int n = a.columns - i;
                const V16 old = n < 16 ? get<false>(before + i, n) : get<true>(before + i, n);
                const V16 share = n < 16 ? get<false>(shares + i, n) : get<true>(shares + i, n);
                return fma(old - own, share, own);
            });
        }
    }
}

// The matrix after a token, and what its receptance reads from it, for the columns [c, c + V * 16).
// `rows` is the matrix before the token. `removed` are keys of length 1, `written` their negatives
// times the rates.
template <int V>
void rwkv_columns(const RwkvArgs& a, int t, int c, const float* rows, float* after,
                  const float* removed, const float* written, const float* keys) {
    const float* r = a.r + t * a.stride;
    const float* decay = a.decay + t * a.stride;
    V16 read[V], value[V], out[V];
    for (int v = 0; v < V; ++v) {
        read[v] = out[v] = splat(0.0f);
        value[v] = load(a.v + t * a.stride + c + v * 16);
    }
    for (int i = 0; i < a.size; ++i) {
        const float* row = rows + int64_t{i} * a.size + c;
        for (int v = 0; v < V; ++v) read[v] = fma(load(row + v * 16), splat(removed[i]), read[v]);
    }
    for (int i = 0; i < a.size; ++i) {
        const int64_t at = int64_t{i} * a.size + c;
        for (int v = 0; v < V; ++v) {
            V16 row = load(rows + at + v * 16) * splat(decay[i]);
            row = fma(splat(keys[i]), value[v], fma(splat(written[i]), read[v], row));
            store(after + at + v * 16, row);
            out[v] = fma(row, splat(r[i]), out[v]);
        }
    }
    for (int v = 0; v < V; ++v) store(a.out + t * a.stride + c + v * 16, out[v]);
}

void rwkv_attend(const RwkvArgs& a) {
    float* const removed = a.scratch;
    float* const written = removed + a.size;
    float* const keys = written + a.size;
    float* const weighed = keys + a.size;
    float* rows = a.state;
    for (int t = 0; t < a.tokens; ++t) {
        const float *k = a.k + t * a.stride, *rate = a.rate + t * a.stride;
        each(k, a.size, removed, [&](V16 key, int i) { return key * load(a.removal + i); });
        const float length = __builtin_sqrtf(dot(removed, removed, a.size));
        const V16 by = splat(1.0f / (length > 1e-12f ? length : 1e-12f));
        for (int i = 0; i < a.size; i += 16) {
            const V16 key = load(k + i), own = load(rate + i), unit = load(removed + i) * by;
            const V16 kept = fma(own - splat(1.0f), load(a.replacement + i), splat(1.0f));
            store(removed + i, unit);
            store(written + i, splat(0.0f) - unit * own);
            store(keys + i, key * kept);
            store(weighed + i, key * kept * load(a.bonus + i));
        }
        const bool last = t + 1 == a.tokens;
        float* const after = !last && t < a.certain ? a.state : a.kept;
        int c = 0;
        for (; c + 64 <= a.size; c += 64) {
            rwkv_columns<4>(a, t, c, rows, after, removed, written, keys);
        }
        for (; c < a.size; c += 16) {
            rwkv_columns<1>(a, t, c, rows, after, removed, written, keys);
        }
        rows = after;
        float* const out = a.out + t * a.stride;
        layer_norm(out, a.norm, a.norm_bias, a.size, a.eps, out);
        const V16 bonus = splat(dot(a.r + t * a.stride, weighed, a.size));
        const float* value = a.v + t * a.stride;
        each(value, a.size, out, [&](V16 x, int i) { return fma(x, bonus, load(out + i)); });
    }
}

}  // namespace
