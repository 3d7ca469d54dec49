// Matmul tiles for NEON with the dot-product extension: 8 rows per panel, one row per 32-bit lane
// of a pair of vectors.
//
// sdot multiplies signed bytes, four columns of four rows at once, exactly. Codes of up to seven
// bits are valid signed bytes. In eight-bit codes the top bit is flipped, which subtracts 128 from
// the code and from its offset. From a table's values the whole offset is subtracted. Activations
// are the operand that is one lane of a vector, so nothing is broadcast. Floor of a 4-bit block and
// token: 16 products, and 8 or 10 operations of the epilogue. Matmuls of many tokens: slice_sums.h.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 8;
constexpr int kMaxTile = 6;

// Eight rows: 0 to 3, and 4 to 7.
struct Rows {
    float32x4_t r[2];
};
// Codes of four columns, as signed bytes.
struct Codes {
    int8x16_t r[2];
};

// What slices.h is written with; see slice_sums.h.
#define HEDDLE_HAS_SLICES
constexpr int kSliceTile = 6;  // the sums of more tokens do not stay in registers
inline Codes add_bytes(const Codes& codes, int more) {
    const int8x16_t all = vdupq_n_s8(static_cast<int8_t>(more));
    return {{vaddq_s8(codes.r[0], all), vaddq_s8(codes.r[1], all)}};
}

inline Rows halves_to_float(float16x8_t halves) {
    return {{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
}
inline Rows halves_to_float(const uint8_t* p) {
    return halves_to_float(vreinterpretq_f16_u8(vld1q_u8(p)));
}

inline Rows to_float(uint8x8_t bytes) {
    const uint16x8_t wide = vmovl_u8(bytes);
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))}};
}

inline Rows to_float(int8x8_t bytes) {
    const int16x8_t wide = vmovl_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))}};
}

inline Rows half_of_e8m0(uint8x8_t bytes) {  // as the one of simd.h
    const uint16x8_t wide = vmovl_u8(bytes);
    const uint32x4_t low = vmovl_u16(vget_low_u16(wide)), high = vmovl_high_u16(wide);
    const uint32x4_t least = vdupq_n_u32(0x00400000);
    const auto half = [&](uint32x4_t e) {
        const uint32x4_t bits = vmaxq_u32(vshlq_n_u32(e, 23), least);
        return vmulq_n_f32(vreinterpretq_f32_u32(bits), 0.5f);
    };
    return {{half(low), half(high)}};
}

inline Rows half_of_e4m3(uint8x8_t bytes) {  // as the one of simd.h
    const float16x8_t halves = vreinterpretq_f16_u16(vshlq_n_u16(vmovl_u8(bytes), 7));
    return {{vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), 128.0f),
             vmulq_n_f32(vcvt_high_f32_f16(halves), 128.0f)}};
}

inline Rows times(const Rows& a, float factor) {
    return {{vmulq_n_f32(a.r[0], factor), vmulq_n_f32(a.r[1], factor)}};
}

inline Rows times(const Rows& a, const Rows& b) {
    return {{vmulq_f32(a.r[0], b.r[0]), vmulq_f32(a.r[1], b.r[1])}};
}

// What a super-block shares, per row; of a part of a block, the scale and the negated minimum.
struct Scales {
    Rows scale, minimum;
};

template <Format F>
inline Scales shared_of(const uint8_t* header) {
    constexpr Layout L = layout_of(F);
    Scales shared = {};
    if constexpr (L.header() > 0) shared.scale = halves_to_float(header);
    if constexpr (L.header() > 2) shared.minimum = halves_to_float(header + 2 * kPanelRows);
    if constexpr (L.factor != 1.0f) {
        shared = {times(shared.scale, L.factor), times(shared.minimum, L.factor)};
    }
    return shared;
}

template <Format F>
inline Scales part_scale(const uint8_t* scales, const Scales& shared, int part) {
    constexpr Layout L = layout_of(F);
    Scales of_part = {};
    if constexpr (L.scale == Scale::kHalf) {
        of_part.scale = halves_to_float(scales);
        if constexpr (L.minimum) of_part.minimum = halves_to_float(scales + 2 * kPanelRows);
        return of_part;
    }
    if constexpr (L.scale == Scale::kShared) return shared;
    const uint8x8_t bytes = vld1_u8(scales + part * kPanelRows);
    if constexpr (L.scale == Scale::kE8M0) {
        of_part.scale = half_of_e8m0(bytes);
    } else if constexpr (L.scale == Scale::kE4M3) {
        of_part.scale = half_of_e4m3(bytes);
    } else if constexpr (L.scale == Scale::kNibbles) {
        of_part.scale = times(shared.scale, to_float(vand_u8(bytes, vdup_n_u8(15))));
        of_part.minimum = times(shared.minimum, to_float(vshr_n_u8(bytes, 4)));
    } else {
        of_part.scale =
            times(shared.scale,
                  L.scale == Scale::kInt8 ? to_float(vreinterpret_s8_u8(bytes)) : to_float(bytes));
        if constexpr (L.minimum) {
            const uint8_t* minima = scales + (L.parts + part) * kPanelRows;
            of_part.minimum = times(shared.minimum, to_float(vld1_u8(minima)));
        }
    }
    return of_part;
}

// Moves bit `From` of every byte to `To`; bits that leave the byte are lost.
template <int From, int To>
inline uint8x16_t move_bits(uint8x16_t v) {
    if constexpr (From > To) return vshrq_n_u8(v, From - To);
    if constexpr (From < To) return vshlq_n_u8(v, To - From);
    return v;
}

// The codes of group G, as signed bytes: four columns of the four rows of Half.
template <Format F, int G, int Half>
inline int8x16_t group_codes(const uint8_t* codes) {
    constexpr Layout L = layout_of(F);
    constexpr int kLow = 8 / L.low_bits;  // groups in a byte of the low plane
    constexpr int kLowAt = G % kLow * L.low_bits;
    const uint8x16_t low = vld1q_u8(codes + G / kLow * 32 + Half * 16);
    const uint8x16_t mask = vdupq_n_u8((1 << L.bits()) - 1);
    uint8x16_t code;
    if constexpr (L.low_bits == 8) {
        code = veorq_u8(low, vdupq_n_u8(0x80));
    } else if constexpr (L.high_bits > 0) {
        constexpr int kHigh = 8 / L.high_bits;
        const uint8x16_t high = vld1q_u8(codes + L.low() * kPanelRows + G / kHigh * 32 + Half * 16);
        // The low bits go to the top of the byte and come down below the high ones.
        const uint8x16_t top = move_bits<kLowAt, 8 - L.low_bits>(low);
        code = move_bits<G % kHigh * L.high_bits, L.low_bits>(high);
        code = vandq_u8(vsriq_n_u8(code, top, 8 - L.low_bits), mask);
    } else {
        code = move_bits<kLowAt, 0>(low);
        if constexpr (kLowAt + L.low_bits < 8) code = vandq_u8(code, mask);
    }
    if constexpr (L.has_table()) {
        code = vqtbl1q_u8(vsubq_u8(vld1q_u8(L.values()), vdupq_n_u8(L.offset)), code);
    }
    return vreinterpretq_s8_u8(code);
}

template <Format F, int G>
inline Codes whole_codes(const uint8_t* codes) {
    return {{group_codes<F, G, 0>(codes), group_codes<F, G, 1>(codes)}};
}

// The part of a format's offset that signed codes have not lost.
constexpr int offset_left(const Layout& layout) {
    if (layout.has_table()) return 0;
    return layout.bits() == 8 ? layout.offset - 128 : layout.offset;
}

// Groups [G, End), in pairs: four vectors of codes are all that the registers hold beside the sums.
template <Format F, int T, int G, int End>
inline void multiply_groups(const uint8_t* codes, const int8_t* x, int64_t columns,
                            int32x4_t (&dot)[T][2]) {
    if constexpr (G < End) {
        const int8x16_t first[2] = {group_codes<F, G, 0>(codes), group_codes<F, G, 1>(codes)};
        const int8x16_t second[2] = {group_codes<F, G + 1, 0>(codes),
                                     group_codes<F, G + 1, 1>(codes)};
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const int8x8_t eight = vld1_s8(x + t * columns + G * 4);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                dot[t][half] = vdotq_lane_s32(dot[t][half], first[half], eight, 0);
                dot[t][half] = vdotq_lane_s32(dot[t][half], second[half], eight, 1);
            }
        }
        multiply_groups<F, T, G + 2, End>(codes, x, columns, dot);
    }
}

// One part of a block: exact dot products, then one fused multiply-add per row and token, and one
// for the minimum.
template <Format F, int T, int Part>
inline void add_part(const uint8_t* block, const Scales& shared, const int8_t* x,
                     const BlockScale* scales, int64_t columns, Rows (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    constexpr int kFirst = Part * kGroups / L.parts, kLast = (Part + 1) * kGroups / L.parts;
    constexpr int kSum = L.parts == 1 ? 0 : 1 + Part;  // of s, half_s[0], half_s[1]
    const int64_t blocks = columns / kBlock;
    int32x4_t dot[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        dot[t][0] = vdupq_n_s32(0);
        if constexpr (offset_left(L) != 0) {
            const int16x4_t offset = vdup_n_s16(offset_left(L));
            int32_t both;
            std::memcpy(&both, scales[t * blocks].minus_half_sum, 4);
            const int16x4_t sums = vreinterpret_s16_s32(vdup_n_s32(both));
            dot[t][0] = vmull_lane_s16(offset, sums, Part);
            if constexpr (L.parts == 1) dot[t][0] = vmlal_lane_s16(dot[t][0], offset, sums, 1);
        }
        dot[t][1] = dot[t][0];
    }
    multiply_groups<F, T, kFirst, kLast>(block + L.scales() * kPanelRows, x, columns, dot);
    const Scales part = part_scale<F>(block, shared, Part);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const float32x4_t scale = vld1q_f32(&scales[t * blocks].d);  // d, s, half_s
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            float32x4_t& sum = acc[t].r[half];
            const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(dot[t][half]), part.scale.r[half]);
            sum = vfmaq_laneq_f32(sum, scaled, scale, 0);
            if constexpr (L.minimum) {
                sum = vfmaq_laneq_f32(sum, part.minimum.r[half], scale, 1 + kSum);
            }
        }
    }
}

template <Format F, int T>
inline void quantised_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                           Rows (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    const int64_t columns = a.xq.columns;
    const int8_t* x = a.xq.q + token * columns;
    const BlockScale* scales = a.xq.scales + token * (columns / kBlock);
    for (int64_t at = 0; at < a.w->columns; at += L.blocks * kBlock) {
        const Scales shared = shared_of<F>(panel);
        panel += L.header() * kPanelRows;
        for (int b = 0; b < L.blocks; ++b) {
            add_part<F, T, 0>(panel, shared, x, scales, columns, acc);
            if constexpr (L.parts == 2) {
                add_part<F, T, 1>(panel, shared, x, scales, columns, acc);
            }
            panel += L.block() * kPanelRows;
            x += kBlock;
            ++scales;
        }
    }
}

// A column of a panel; of F8_E4M3, 2**-8 times the numbers without their scales.
template <Format F>
inline Rows float_column(const uint8_t* panel) {
    if constexpr (F == Format::kF32) {
        return {
            {vreinterpretq_f32_u8(vld1q_u8(panel)), vreinterpretq_f32_u8(vld1q_u8(panel + 16))}};
    } else if constexpr (F == Format::kF16) {
        return halves_to_float(panel);
    } else if constexpr (F == Format::kI8) {
        const int16x8_t codes = vmovl_s8(vreinterpret_s8_u8(vld1_u8(panel)));
        return {
            {vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))), vcvtq_f32_s32(vmovl_high_s16(codes))}};
    } else if constexpr (F == Format::kF8E4M3) {
        const int8x8_t codes = vreinterpret_s8_u8(vld1_u8(panel));
        const uint16x8_t bits = vreinterpretq_u16_s16(vshll_n_s8(codes, 7));
        return halves_to_float(vreinterpretq_f16_u16(vandq_u16(bits, vdupq_n_u16(0xBFFF))));
    } else {
        const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(panel));
        return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16))}};
    }
}

template <Format F>
inline Rows scaled_column(const uint8_t* panel, const Rows& scale) {
    if constexpr (layout_of(F).run == 1) return float_column<F>(panel);
    return times(float_column<F>(panel), scale);
}

// Columns [K, End) of four whose activations are in x.
template <Format F, int T, int K = 0>
inline void add_four_columns(const uint8_t* panel, const Rows& scale, const float32x4_t (&x)[T],
                             Rows (&acc)[T]) {
    if constexpr (K < 4) {
        const Rows w = scaled_column<F>(panel, scale);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[t].r[0] = vfmaq_laneq_f32(acc[t].r[0], w.r[0], x[t], K);
            acc[t].r[1] = vfmaq_laneq_f32(acc[t].r[1], w.r[1], x[t], K);
        }
        add_four_columns<F, T, K + 1>(panel + float_bytes(F) * kPanelRows, scale, x, acc);
    }
}

template <Format F, int T>
inline void float_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token, Rows (&acc)[T]) {
    constexpr int kRun = layout_of(F).run, kColumn = float_bytes(F) * kPanelRows;
    const int64_t columns = a.w->columns;
    const int64_t stride = a.x_stride;
    const float* x = a.x + token * stride;
    Rows scale{};
    int64_t k = 0;
    for (; k + 4 <= columns; k += 4, panel += 4 * kColumn) {
        if (kRun > 1 && k % kRun == 0) {
            scale = times(float_column<Format::kF32>(panel), 256.0f);
            panel += 4 * kPanelRows;
        }
        float32x4_t four[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) four[t] = vld1q_f32(x + t * stride + k);
        add_four_columns<F, T>(panel, scale, four, acc);
    }
    for (; k < columns; ++k, panel += kColumn) {
        const Rows w = scaled_column<F>(panel, scale);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[t].r[0] = vfmaq_n_f32(acc[t].r[0], w.r[0], x[t * stride + k]);
            acc[t].r[1] = vfmaq_n_f32(acc[t].r[1], w.r[1], x[t * stride + k]);
        }
    }
}

// Writes the sums of one token and one panel's rows.
inline void write_sums(const MatmulArgs& a, int panel_index, int64_t token, const float* sums) {
    const int row = panel_index * kPanelRows;
    const int rows = a.w->rows - row < kPanelRows ? a.w->rows - row : kPanelRows;
    float* out = a.out + token * a.out_stride + row;
    for (int r = 0; r < rows; ++r) {
        const float value = a.w->bias ? sums[r] + a.w->bias[row + r] : sums[r];
        out[r] = a.accumulate ? out[r] + value : value;
    }
}

template <Format F, int T>
void tile(const MatmulArgs& a, int panel_index, int64_t token) {
    Rows acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[t] = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
    const uint8_t* panel = a.w->panels + panel_index * a.w->panel_bytes;
    if constexpr (is_quantised(F)) {
        quantised_tile<F, T>(a, panel, token, acc);
    } else {
        float_tile<F, T>(a, panel, token, acc);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        float lanes[kPanelRows];
        vst1q_f32(lanes, acc[t].r[0]);
        vst1q_f32(lanes + 4, acc[t].r[1]);
        write_sums(a, panel_index, token + t, lanes);
    }
}

}  // namespace
