// Kernels of attention over compressed positions. Include this file only in kernels.cpp.
//
// DeepSeek-AI 2026 (DeepSeek-V4): beside the keys of a window, a query sees one key for each
// `ratio` positions before it, which is a weighted mean of what those positions made. A key is the
// value, too. The cache keeps both keys of a position as one vector, which latents.h describes:
// the position's own key, then the compressed key of the positions that end there.
#pragma once

#include "kernels.h"
#include "latents.h"
#include "simd.h"

namespace {

using heddle::AttendCompressedArgs;
using heddle::CompressArgs;

// The weighted mean of sixteen columns over the rows that end at `position`.
inline V16 compressed_column(const CompressArgs& a, int position, int column) {
    const int rows = a.ratio * (a.overlaps ? 2 : 1);
    const int first = position + 1 < rows ? 0 : position + 1 - rows;
    const int second_half = position + 1 - a.ratio;
    const auto place = [&](int row) {
        return a.state + (row % rows) * a.state_stride + column +
               (a.overlaps && row >= second_half ? a.dim : 0);
    };
    V16 peak = splat(-__builtin_inff());
    for (int row = first; row <= position; ++row) peak = max(peak, load(place(row) + a.width));
    V16 sum = splat(0.0f), mean = splat(0.0f);
    for (int row = first; row <= position; ++row) {
        const V16 weight = exp(load(place(row) + a.width) - peak);
        sum = sum + weight;
        mean = fma(weight, load(place(row)), mean);
    }
    return mean / sum;
}

void compress(const CompressArgs& a) {
    const int rows = a.ratio * (a.overlaps ? 2 : 1);
    const size_t bytes = sizeof(float) * static_cast<size_t>(a.columns);
    for (int t = 0; t < a.tokens; ++t) {
        const int position = a.first_position + t;
        float* row = a.state + (position % rows) * a.state_stride;
        for (int c = a.first_column; c < a.width; c += a.dim) {
            std::memcpy(row + c, a.x + t * a.stride + c, bytes);
            const float* bias = a.bias + (position % a.ratio) * a.width;
            for (int i = c; i < c + a.columns; ++i) {
                row[a.width + i] = a.gate[t * a.stride + i] + bias[i];
            }
        }
        if (a.out == nullptr) continue;
        const bool closes = (position + 1) % a.ratio == 0;
        for (int c = a.first_column; c < a.first_column + a.columns; c += 16) {
            store(a.out + t * a.dim + c, closes ? compressed_column(a, position, c) : splat(0.0f));
        }
    }
}

// Calls visit(part, position in the page, first element, number) for each key that a query sees.
template <typename Part, typename Visit>
inline void each_key(const AttendCompressedArgs& a, Visit visit) {
    constexpr int kPage = heddle::kPageTokens;
    const auto part = [&](int page) {
        return Part(a.kv + a.pages[page - a.first_page] * a.page_stride, 2 * a.dim);
    };
    const int last = a.position / kPage;
    int number = 0, from = a.position + 1 - a.window;
    if (from < 0) from = 0;
    for (int page = from / kPage; page <= last; ++page) {
        const Part keys = part(page);
        const int begin = page * kPage;
        for (int i = begin < from ? from - begin : 0; i < kPage && begin + i <= a.position; ++i) {
            visit(keys, i, 0, number++);
        }
    }
    for (int end = a.ratio - 1; end <= a.position;) {
        const int page = end / kPage;
        const Part keys = part(page);
        for (; end <= a.position && end / kPage == page; end += a.ratio) {
            visit(keys, end % kPage, a.dim, number++);
        }
    }
}

template <int N, typename Part>
inline void attend_keys(const AttendCompressedArgs& a) {
    each_key<Part>(a, [&](const Part& keys, int position, int first, int number) {
        V16 acc[N];
        for (int h = 0; h < N; ++h) acc[h] = splat(0.0f);
        for (int d = 0; d < a.dim; d += 16) {
            const V16 key = keys.vector(position, first + d);
            for (int h = 0; h < N; ++h) acc[h] = fma(load(a.q + h * a.dim + d), key, acc[h]);
        }
        for (int h = 0; h < N; ++h) {
            a.scratch[h * a.keys + number] = reduce_add(acc[h]) * a.scale;
        }
    });
    for (int h = 0; h < N; ++h) {
        float* scores = a.scratch + h * a.keys;
        float peak = max_of(scores, a.keys);
        if (a.sinks != nullptr && a.sinks[h] > peak) peak = a.sinks[h];
        float sum = sum_exp(scores, a.keys, peak, 1.0f);
        if (a.sinks != nullptr) sum += sum_exp(a.sinks + h, 1, peak, 1.0f);
        exp_all(scores, a.keys, peak, 1.0f, scores);
        scale(scores, 1.0f / sum, a.keys, scores);
        std::memset(a.out + h * a.dim, 0, sizeof(float) * static_cast<size_t>(a.dim));
    }
    each_key<Part>(a, [&](const Part& keys, int position, int first, int number) {
        V16 weight[N];
        for (int h = 0; h < N; ++h) weight[h] = splat(a.scratch[h * a.keys + number]);
        for (int d = 0; d < a.dim; d += 16) {
            const V16 key = keys.vector(position, first + d);
            for (int h = 0; h < N; ++h) {
                float* out = a.out + h * a.dim + d;
                store(out, fma(weight[h], key, load(out)));
            }
        }
    });
}

template <typename Part>
inline void attend_compressed_of(const AttendCompressedArgs& a) {
    AttendCompressedArgs rest = a;
    for (int done = 0; done < a.heads;) {
        rest.q = a.q + done * a.dim;
        rest.out = a.out + done * a.dim;
        if (a.sinks != nullptr) rest.sinks = a.sinks + done;
        if (a.heads - done >= 4) {
            attend_keys<4, Part>(rest);
            done += 4;
        } else {
            attend_keys<1, Part>(rest);
            ++done;
        }
    }
}

void attend_compressed(const AttendCompressedArgs& a) {
    a.kv_type == heddle::KvType::kF16 ? attend_compressed_of<F16Latents>(a)
                                      : attend_compressed_of<Q8Latents>(a);
}

}  // namespace
