// Matmul tiles in plain C++: 8 rows per panel, the same arithmetic as the vector versions.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 8;
constexpr int kMaxTile = 1;  // a tile of more tokens would share nothing

inline float half_at(const uint8_t* p, int index) {
    uint16_t h;
    std::memcpy(&h, p + index * 2, 2);
    return half_to_float(h);
}

// The code of row r, column i of group g, before the offset is subtracted.
template <Format F>
inline int code_at(const uint8_t* codes, int g, int r, int i) {
    constexpr Layout L = layout_of(F);
    constexpr int kLow = 8 / L.low_bits, kPlane = kPanelRows * 4;
    const int lane = r * 4 + i;
    int code = codes[g / kLow * kPlane + lane] >> (g % kLow * L.low_bits) & ((1 << L.low_bits) - 1);
    if constexpr (L.high_bits > 0) {
        constexpr int kHigh = 8 / L.high_bits;
        const uint8_t* high = codes + L.low() * kPanelRows;
        const int bits = high[g / kHigh * kPlane + lane] >> (g % kHigh * L.high_bits);
        code |= (bits & ((1 << L.high_bits) - 1)) << L.low_bits;
    }
    return L.has_table() ? L.values()[code] : code;
}

// Scale and negated minimum of row r in one part of a block.
template <Format F>
inline void part_scale(const uint8_t* scales, float shared_scale, float shared_minimum, int part,
                       int r, float& scale, float& minimum) {
    constexpr Layout L = layout_of(F);
    if (L.scale == Scale::kHalf) {
        scale = half_at(scales, r);
        minimum = L.minimum ? half_at(scales + 2 * kPanelRows, r) : 0.0f;
        return;
    }
    if (L.scale == Scale::kShared) {
        scale = shared_scale;
        minimum = 0.0f;
        return;
    }
    const uint8_t* at = scales + part * kPanelRows + r;
    if (L.scale == Scale::kE8M0) {
        scale = half_of_e8m0(*at);
        minimum = 0.0f;
        return;
    }
    if (L.scale == Scale::kE4M3) {
        scale = half_of_e4m3(*at);
        minimum = 0.0f;
        return;
    }
    if (L.scale == Scale::kNibbles) {
        scale = shared_scale * static_cast<float>(*at & 15);
        minimum = shared_minimum * static_cast<float>(*at >> 4);
        return;
    }
    scale = shared_scale * (L.scale == Scale::kInt8 ? static_cast<float>(static_cast<int8_t>(*at))
                                                    : static_cast<float>(*at));
    minimum = L.minimum ? shared_minimum * static_cast<float>(at[L.parts * kPanelRows]) : 0.0f;
}

template <Format F>
inline void add_part(const uint8_t* block, const uint8_t* header, int part, const int8_t* x,
                     const BlockScale& activation, float (&acc)[kPanelRows]) {
    constexpr Layout L = layout_of(F);
    const uint8_t* codes = block + L.scales() * kPanelRows;
    const int first = part * kGroups / L.parts, last = (part + 1) * kGroups / L.parts;
    for (int r = 0; r < kPanelRows; ++r) {
        int32_t dot = 0;
        for (int g = first; g < last; ++g) {
            for (int i = 0; i < 4; ++i)
                dot += (code_at<F>(codes, g, r, i) - L.offset) * x[g * 4 + i];
        }
        float scale, minimum;
        part_scale<F>(block, L.header() > 0 ? half_at(header, r) * L.factor : 0.0f,
                      L.header() > 2 ? half_at(header + 2 * kPanelRows, r) * L.factor : 0.0f, part,
                      r, scale, minimum);
        acc[r] = __builtin_fmaf(static_cast<float>(dot) * scale, activation.d, acc[r]);
        if (L.minimum) {
            const float s = L.parts == 1 ? activation.s : activation.half_s[part];
            acc[r] = __builtin_fmaf(minimum, s, acc[r]);
        }
    }
}

template <Format F>
inline void quantised_row(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                          float (&acc)[kPanelRows]) {
    constexpr Layout L = layout_of(F);
    const int64_t columns = a.xq.columns;
    const int8_t* x = a.xq.q + token * columns;
    const BlockScale* scales = a.xq.scales + token * (columns / kBlock);
    for (int64_t at = 0; at < a.w->columns; at += L.blocks * kBlock) {
        const uint8_t* header = panel;
        panel += L.header() * kPanelRows;
        for (int b = 0; b < L.blocks; ++b) {
            for (int part = 0; part < L.parts; ++part) {
                add_part<F>(panel, header, part, x, *scales, acc);
            }
            panel += L.block() * kPanelRows;
            x += kBlock;
            ++scales;
        }
    }
}

template <Format F>
inline float float_at(const uint8_t* p) {
    if (F == Format::kF32) {
        float x;
        std::memcpy(&x, p, 4);
        return x;
    }
    if (F == Format::kF8E4M3) return float_of_e4m3(*p);
    if (F == Format::kI8) return static_cast<int8_t>(*p);
    uint16_t h;
    std::memcpy(&h, p, 2);
    return F == Format::kF16 ? half_to_float(h) : bits_float(static_cast<uint32_t>(h) << 16);
}

template <Format F>
inline void float_row(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                      float (&acc)[kPanelRows]) {
    constexpr int kRun = layout_of(F).run;
    const float* x = a.x + token * a.x_stride;
    for (int64_t first = 0; first < a.w->columns; first += kRun) {
        float scales[kPanelRows];
        if (kRun > 1) {
            std::memcpy(scales, panel, sizeof scales);
            panel += sizeof scales;
        }
        for (int k = 0; k < kRun; ++k) {
            for (int r = 0; r < kPanelRows; ++r, panel += float_bytes(F)) {
                float w = float_at<F>(panel);
                if (kRun > 1) w *= scales[r];
                acc[r] = __builtin_fmaf(w, x[first + k], acc[r]);
            }
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
