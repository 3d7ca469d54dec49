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

void conv(const ConvArgs& a) {
    const int before = a.taps - 1;
    for (int c = 0; c < a.columns; c += 16) {
        const int n = a.columns - c < 16 ? a.columns - c : 16;
        const auto get = [&](const float* p) {
            return n < 16 ? load_partial(p + c, n, 0.0f) : load(p + c);
        };
        const V16 bias = a.bias == nullptr ? splat(0.0f) : get(a.bias);
        for (int t = 0; t < a.tokens; ++t) {
            V16 sum = bias;
            for (int tap = 0; tap < a.taps; ++tap) {
                const int row = t + tap - before;
                const float* from =
                    row < 0 ? a.state + (t + tap) * a.state_stride : a.x + row * a.stride;
                sum = fma(get(from), get(a.filters + tap * a.state_stride), sum);
            }
            if (a.silu) sum = sum * sigmoid(sum);
            float* out = a.out + t * a.stride + c;
            if (n < 16) {
                store_partial(out, n, sum);
            } else {
                store(out, sum);
            }
        }
    }
}

inline float dot(const float* x, const float* y, int n) {
    V16 sum = splat(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) sum = fma(load(x + i), load(y + i), sum);
    if (i < n) sum = fma(load_partial(x + i, n - i, 0.0f), load_partial(y + i, n - i, 0.0f), sum);
    return reduce_add(sum);
}

// Up to 16 columns of a head's matrix: `n` of them.
struct Columns {
    int n;
    V16 get(const float* p) const { return n < 16 ? load_partial(p, n, 0.0f) : load(p); }
    void put(float* p, V16 a) const {
        if (n < 16) {
            store_partial(p, n, a);
        } else {
            store(p, a);
        }
    }
};

// RowSums over the rows of a matrix S: of `keys[i] * S[i]` and of `queries[i] * S[i]`. Even and odd
// rows have sums of their own, so that the additions of a sum overlap.
template <int V>
struct RowSums {
    V16 read[V][2], out[V][2];
    void clear() {
        for (int v = 0; v < V; ++v) {
            for (int odd = 0; odd < 2; ++odd) read[v][odd] = out[v][odd] = splat(0.0f);
        }
    }
    inline void add(int v, int odd, V16 row, float key, float query) {
        read[v][odd] = fma(row, splat(key), read[v][odd]);
        out[v][odd] = fma(row, splat(query), out[v][odd]);
    }
};

// One block of V * 16 columns, the last of them perhaps partial.
template <int V>
void attend_block(const LinearAttendArgs& a, float* block, float* kept, int column, int width) {
    Columns columns[V];
    for (int v = 0; v < V; ++v) columns[v].n = width - v * 16 < 16 ? width - v * 16 : 16;
    float* const decay = a.scratch;
    float* const keys = decay + a.key_dim;
    float* const queries = keys + a.key_dim;
    // The factors of a token's rows: its decay, and keys and queries times the decay.
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
    RowSums<V> sums;
    sums.clear();
    prepare(0);
    for (int i = 0; i < a.key_dim; ++i) {
        for (int v = 0; v < V; ++v) {
            sums.add(v, i & 1, columns[v].get(block + i * width + v * 16), keys[i], queries[i]);
        }
    }
    for (int t = 0; t < a.tokens; ++t) {
        const float* k = a.k + t * a.key_stride;
        const float* d = a.decay + t * a.decay_stride;
        const float both = dot(k, a.q + t * a.key_stride, a.key_dim);
        V16 change[V];
        for (int v = 0; v < V; ++v) {
            const int at = column + v * 16;
            const V16 value = columns[v].get(a.v + t * a.value_stride + at);
            const V16 read = sums.read[v][0] + sums.read[v][1];
            change[v] =
                (a.corrects ? value - read : value) * splat(a.strength[t * a.strength_stride]);
            V16 y = fma(change[v], splat(both), sums.out[v][0] + sums.out[v][1]);
            if (a.skips) y = fma(value, splat(a.skip), y);
            columns[v].put(a.out + t * a.value_stride + at, y);
        }
        const bool last = t + 1 == a.tokens;
        float* const to = last ? kept : block;
        for (int i = 0; i < a.key_dim; ++i) decay[i] = a.decay_of_rows ? d[i] : d[0];
        if (!last) {
            prepare(t + 1);
            sums.clear();
            for (int i = 0; i < a.key_dim; ++i) {
                for (int v = 0; v < V; ++v) {
                    float* const row = block + i * width + v * 16;
                    const V16 next =
                        fma(splat(k[i]), change[v], columns[v].get(row) * splat(decay[i]));
                    columns[v].put(row, next);
                    sums.add(v, i & 1, next, keys[i], queries[i]);
                }
            }
        } else {
            for (int i = 0; i < a.key_dim; ++i) {
                for (int v = 0; v < V; ++v) {
                    const int64_t at = int64_t{i} * width + v * 16;
                    const V16 old = columns[v].get(block + at) * splat(decay[i]);
                    columns[v].put(to + at, fma(splat(k[i]), change[v], old));
                }
            }
        }
    }
}

void linear_attend(const LinearAttendArgs& a) {
    for (int column = a.first_column; column < a.last_column; column += heddle::kStateColumns) {
        const int rest = a.value_dim - column;
        const int width = rest < heddle::kStateColumns ? rest : heddle::kStateColumns;
        const int64_t at = int64_t{a.key_dim} * column;
        if (width > 16) {
            attend_block<2>(a, a.state + at, a.kept + at, column, width);
        } else {
            attend_block<1>(a, a.state + at, a.kept + at, column, width);
        }
    }
}

}  // namespace
