// Matmul tiles in plain C++: 8 rows per panel, the same arithmetic as the vector versions.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 8;
constexpr int kMaxTile = 4;

inline float half_at(const uint8_t* p, int index) {
    uint16_t h;
    std::memcpy(&h, p + index * 2, 2);
    return half_to_float(h);
}

// Exact dot products of one block: 8 rows and one token.
template <Format F>
inline void block_dot(const uint8_t* codes, const int8_t* x, int32_t (&dot)[kPanelRows]) {
    constexpr int kOffset = F == Format::kQ4Min ? 0 : F == Format::kQ4Offset ? 8 : 128;
    for (int r = 0; r < kPanelRows; ++r) dot[r] = 0;
    for (int g = 0; g < kBlock / 4; ++g) {
        for (int r = 0; r < kPanelRows; ++r) {
            for (int i = 0; i < 4; ++i) {
                int code;
                if (F == Format::kQ8Offset) {
                    code = codes[g * 32 + r * 4 + i];
                } else {
                    code = codes[g / 2 * 32 + r * 4 + i] >> (g % 2 * 4) & 15;
                }
                dot[r] += (code - kOffset) * x[g * 4 + i];
            }
        }
    }
}

template <Format F>
inline void quantised_row(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                          float (&acc)[kPanelRows]) {
    constexpr int kScaleBytes = F == Format::kQ4Min ? 32 : 16;
    constexpr int kCodeBytes = F == Format::kQ8Offset ? 256 : 128;
    const int64_t columns = a.xq.columns;
    const int64_t blocks = columns / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
        int32_t dot[kPanelRows];
        block_dot<F>(panel + kScaleBytes, a.xq.q + token * columns + b * kBlock, dot);
        const int64_t at = token * blocks + b;
        for (int r = 0; r < kPanelRows; ++r) {
            const float scaled = static_cast<float>(dot[r]) * half_at(panel, r);
            acc[r] = __builtin_fmaf(scaled, a.xq.d[at], acc[r]);
            if (F == Format::kQ4Min) {
                acc[r] = __builtin_fmaf(half_at(panel + 16, r), a.xq.s[at], acc[r]);
            }
        }
        panel += kScaleBytes + kCodeBytes;
    }
}

template <Format F>
inline float float_at(const uint8_t* panel, int64_t index) {
    if (F == Format::kF32) {
        float x;
        std::memcpy(&x, panel + index * 4, 4);
        return x;
    }
    uint16_t h;
    std::memcpy(&h, panel + index * 2, 2);
    return F == Format::kF16 ? half_to_float(h) : bits_float(static_cast<uint32_t>(h) << 16);
}

template <Format F>
inline void float_row(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                      float (&acc)[kPanelRows]) {
    const float* x = a.x + token * a.w->columns;
    for (int64_t k = 0; k < a.w->columns; ++k) {
        for (int r = 0; r < kPanelRows; ++r) {
            acc[r] = __builtin_fmaf(float_at<F>(panel, k * kPanelRows + r), x[k], acc[r]);
        }
    }
}

template <Format F, int T>
void tile(const MatmulArgs& a, int panel_index, int64_t token) {
    const uint8_t* panel = a.w->panels + panel_index * a.w->panel_bytes;
    const int row = panel_index * kPanelRows;
    const int rows = a.w->rows - row < kPanelRows ? a.w->rows - row : kPanelRows;
    for (int t = 0; t < T; ++t) {
        float acc[kPanelRows] = {};
        if constexpr (is_quantised(F)) {
            quantised_row<F>(a, panel, token + t, acc);
        } else {
            float_row<F>(a, panel, token + t, acc);
        }
        float* out = a.out + (token + t) * a.out_stride + row;
        for (int r = 0; r < rows; ++r) {
            const float value = a.w->bias ? acc[r] + a.w->bias[row + r] : acc[r];
            out[r] = a.accumulate ? out[r] + value : value;
        }
    }
}

}  // namespace
