// Matmul tiles for AVX-512 with VNNI: 16 rows per panel, one row per 32-bit lane.
//
// vpdpbusd multiplies unsigned weight codes with signed activations, four columns of sixteen rows
// at once, exactly. Floor: two of them a cycle, 128 products; a 4-bit block of one token takes 8
// and an epilogue of 4 float operations.
#pragma once

#include "kernels.h"
#include "prefetch.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 16;
constexpr int kMaxTile = 12;

// What slices.h is written with.
#define HEDDLE_HAS_SLICES
#if defined(HEDDLE_TILES)
constexpr int kSliceTile = 16;  // rows of a tile register
#else
constexpr int kSliceTile = 12;
#endif
using Codes = __m512i;
using Rows = __m512;
inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_codes(uint8_t* p, Codes codes) { _mm512_storeu_si512(p, codes); }
inline Rows load_rows(const uint8_t* p) { return _mm512_loadu_ps(p); }
inline void store_rows(uint8_t* p, Rows rows) { _mm512_storeu_ps(p, rows); }
inline Codes add_bytes(Codes codes, int more) {
    return _mm512_add_epi8(codes, _mm512_set1_epi8(static_cast<char>(more)));
}
inline Codes all_lanes(int32_t v) { return _mm512_set1_epi32(v); }
inline Codes add_lanes(Codes a, Codes b) { return _mm512_add_epi32(a, b); }
inline Codes add_products(Codes sums, Codes codes, Codes x) {
    return _mm512_dpbusd_epi32(sums, codes, x);
}
inline Rows to_floats(Codes sums) { return _mm512_cvtepi32_ps(sums); }
inline Rows multiply(Rows a, Rows b) { return _mm512_mul_ps(a, b); }
inline Rows fma(Rows a, float b, Rows c) { return _mm512_fmadd_ps(a, _mm512_set1_ps(b), c); }
// The compiler finishes `rows` here. It cannot move this work behind later instructions of tiles.
inline void keep_here(Rows& rows) { asm volatile("" : "+v"(rows)); }
// The part of a format's offset that whole_codes has not subtracted.
constexpr int offset_left(const Layout& layout) { return layout.offset; }
// A dot product that began with kZeroBits, times the scale. `zero` is scaled_zero(scale).
inline Rows scaled_sum(Codes dot, Rows scale, Rows zero) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(dot), scale, zero);
}
inline Rows scaled_zero(Rows scale) { return _mm512_mul_ps(scale, _mm512_set1_ps(-kZero)); }

inline __m512 halves_to_float(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512i four_columns(const int8_t* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

inline __m512 signed_bytes_to_float(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline __m512 bytes_to_float(__m128i bytes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

// What a super-block shares, per row.
struct Shared {
    __m512 scale, minimum;
};

template <Format F>
inline Shared shared_of(const uint8_t* header) {
    constexpr Layout L = layout_of(F);
    Shared shared = {};
    if constexpr (L.header() > 0) shared.scale = halves_to_float(header);
    if constexpr (L.header() > 2) shared.minimum = halves_to_float(header + 32);
    if constexpr (L.factor != 1.0f) {
        const __m512 factor = _mm512_set1_ps(L.factor);
        shared = {_mm512_mul_ps(shared.scale, factor), _mm512_mul_ps(shared.minimum, factor)};
    }
    return shared;
}

// Scale and negated minimum of one part of a block, per row.
struct PartScale {
    __m512 scale, minimum;
};

template <Format F>
inline PartScale part_scale(const uint8_t* scales, const Shared& shared, int part) {
    constexpr Layout L = layout_of(F);
    const __m512 none = _mm512_setzero_ps();
    if constexpr (L.scale == Scale::kHalf) {
        return {halves_to_float(scales), L.minimum ? halves_to_float(scales + 32) : none};
    } else if constexpr (L.scale == Scale::kShared) {
        return {shared.scale, none};
    } else if constexpr (L.scale == Scale::kE8M0) {
        const __m128i bytes =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + part * kPanelRows));
        const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
        const __m512i least = _mm512_set1_epi32(0x00400000);  // see half_of_e8m0
        return {
            _mm512_mul_ps(_mm512_castsi512_ps(_mm512_max_epi32(bits, least)), _mm512_set1_ps(0.5f)),
            none};
    } else if constexpr (L.scale == Scale::kE4M3) {  // as half_of_e4m3
        const __m128i bytes =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + part * kPanelRows));
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        return {_mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(128.0f)), none};
    } else if constexpr (L.scale == Scale::kNibbles) {
        const __m128i both =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + part * kPanelRows));
        const __m128i low = _mm_set1_epi8(15);
        const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), low);
        return {_mm512_mul_ps(shared.scale, bytes_to_float(_mm_and_si128(both, low))),
                _mm512_mul_ps(shared.minimum, bytes_to_float(high))};
    } else {
        const uint8_t* at = scales + part * kPanelRows;
        const auto* minima = reinterpret_cast<const __m128i*>(at + L.parts * kPanelRows);
        const __m512 factor =
            L.scale == Scale::kInt8
                ? signed_bytes_to_float(at)
                : bytes_to_float(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        return {_mm512_mul_ps(shared.scale, factor),
                L.minimum ? _mm512_mul_ps(shared.minimum, bytes_to_float(_mm_loadu_si128(minima)))
                          : none};
    }
}

// Moves bits [from, from + width) of every byte to `to` and keeps only them.
template <int From, int Width, int To>
inline __m512i move_bits(__m512i v) {
    __m512i moved = v;
    if constexpr (From > To) moved = _mm512_srli_epi16(v, From - To);
    if constexpr (From < To) moved = _mm512_slli_epi16(v, To - From);
    return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(((1 << Width) - 1) << To)));
}

// The factors of the activations in group G: unsigned codes, or the table's values; four columns of
// sixteen rows.
template <Format F, int G>
inline __m512i whole_codes(const uint8_t* codes) {
    constexpr Layout L = layout_of(F);
    constexpr int kLow = 8 / L.low_bits;  // groups in a byte of the low plane
    const uint8_t* low_at = codes + G / kLow * 64;
    if constexpr (G % kLow == 0) prefetch_ahead(low_at);
    const __m512i low = _mm512_loadu_si512(low_at);
    if constexpr (L.low_bits == 8) return low;
    __m512i code = move_bits<G % kLow * L.low_bits, L.low_bits, 0>(low);
    if constexpr (L.high_bits > 0) {
        constexpr int kHigh = 8 / L.high_bits;
        const uint8_t* high_at = codes + L.low() * kPanelRows + G / kHigh * 64;
        if constexpr (G % kHigh == 0) prefetch_ahead(high_at);
        const __m512i high = _mm512_loadu_si512(high_at);
        code = _mm512_or_si512(code,
                               move_bits<G % kHigh * L.high_bits, L.high_bits, L.low_bits>(high));
    }
    if constexpr (L.has_table()) {
        const __m512i table =
            _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(L.values())));
        code = _mm512_shuffle_epi8(table, code);
    }
    return code;
}

template <Format F, int T, int G, int End>
inline void multiply_groups(const uint8_t* codes, const int8_t* x, int64_t columns,
                            __m512i (&dot)[T]) {
    if constexpr (G < End) {
        const __m512i code = whole_codes<F, G>(codes);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            dot[t] = _mm512_dpbusd_epi32(dot[t], code, four_columns(x + t * columns + G * 4));
        }
        multiply_groups<F, T, G + 1, End>(codes, x, columns, dot);
    }
}

// kZeroBits, or 0 where sums are integers, minus the offset times the sum of a part's activations.
template <Format F, int Part>
inline __m512i start_of(const BlockScale& scale) {
    constexpr int32_t kFactors = offset_factors(layout_of(F), Part);
    const __m512i zero = _mm512_set1_epi32(sums_are_floats(layout_of(F)) ? kZeroBits : 0);
    if constexpr (kFactors == 0) return zero;
    int32_t sums;
    std::memcpy(&sums, scale.minus_half_sum, 4);
    return _mm512_dpwssd_epi32(zero, _mm512_set1_epi32(kFactors), _mm512_set1_epi32(sums));
}

// The same of a dot product that began with start_of.
template <Format F>
inline __m512 scaled_part(__m512i dot, __m512 scale, __m512 zero) {
    if constexpr (sums_are_floats(layout_of(F))) return scaled_sum(dot, scale, zero);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
}

// One part of a block: exact dot products, then one fused multiply-add per row and token, and one
// for the minimum.
template <Format F, int T, int Part>
inline void add_part(const uint8_t* block, const Shared& shared, const int8_t* x,
                     const BlockScale* scales, int64_t columns, __m512 (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    constexpr int kFirst = Part * kGroups / L.parts, kLast = (Part + 1) * kGroups / L.parts;
    const PartScale part = part_scale<F>(block, shared, Part);
    const __m512 zero = scaled_zero(part.scale);
    const int64_t blocks = columns / kBlock;
    __m512i dot[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) dot[t] = start_of<F, Part>(scales[t * blocks]);
    multiply_groups<F, T, kFirst, kLast>(block + L.scales() * kPanelRows, x, columns, dot);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const BlockScale& scale = scales[t * blocks];
        const __m512 scaled = scaled_part<F>(dot[t], part.scale, zero);
        acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(scale.d), acc[t]);
        if constexpr (L.minimum) {
            const float s = L.parts == 1 ? scale.s : scale.half_s[Part];
            acc[t] = _mm512_fmadd_ps(part.minimum, _mm512_set1_ps(s), acc[t]);
        }
    }
}

template <Format F, int T>
inline void quantised_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                           __m512 (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    const int64_t columns = a.xq.columns;
    const int8_t* x = a.xq.q + token * columns;
    const BlockScale* scales = a.xq.scales + token * (columns / kBlock);
    for (int64_t at = 0; at < a.w->columns; at += L.blocks * kBlock) {
        const Shared shared = shared_of<F>(panel);
        panel += L.header() * kPanelRows;
        for (int b = 0; b < L.blocks; ++b) {
            prefetch_ahead(panel);
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

template <Format F>
inline __m512 float_column(const uint8_t* panel, int64_t column) {
    panel += column * float_bytes(F) * kPanelRows;
    if (F == Format::kF32) return _mm512_loadu_ps(panel);
    if (F == Format::kF16) return halves_to_float(panel);
    if (F == Format::kI8) {
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    }
    if (F == Format::kF8E4M3) {  // sign and the rest as a half, which is 2**-8 times the number
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel));
        const __m256i bits = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
        return _mm512_cvtph_ps(
            _mm256_and_si256(bits, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF))));
    }
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <int T>
inline void add_column(__m512 w, const float* x, int64_t stride, __m512 (&acc)[T]) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * stride]), acc[t]);
    }
}

template <Format F, int T>
inline void float_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token, __m512 (&acc)[T]) {
    constexpr int kRun = layout_of(F).run;
    const int64_t columns = a.w->columns;
    const int64_t stride = a.x_stride;
    const float* x = a.x + token * stride;
    if constexpr (kRun == 1) {
        for (int64_t k = 0; k < columns; ++k) {
            add_column<T>(float_column<F>(panel, k), x + k, stride, acc);
        }
    } else {
        for (int64_t first = 0; first < columns; first += kRun) {
            const __m512 stored = _mm512_loadu_ps(panel);
            const __m512 scale = _mm512_mul_ps(stored, _mm512_set1_ps(256.0f));
            panel += 4 * kPanelRows;
            for (int64_t k = 0; k < kRun; ++k) {
                const __m512 w = _mm512_mul_ps(float_column<F>(panel, k), scale);
                add_column<T>(w, x + first + k, stride, acc);
            }
            panel += kRun * kPanelRows;
        }
    }
}

// Writes the sums of T tokens and one panel's rows.
template <int T>
inline void write_rows(const MatmulArgs& a, int panel_index, int64_t token, __m512 (&acc)[T]) {
    const int row = panel_index * kPanelRows;
    const int rows_left = a.w->rows - row;
    const __mmask16 mask =
        rows_left >= kPanelRows ? 0xFFFF : static_cast<__mmask16>((1u << rows_left) - 1);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        float* out = a.out + (token + t) * a.out_stride + row;
        if (a.w->bias) acc[t] = _mm512_add_ps(acc[t], _mm512_maskz_loadu_ps(mask, a.w->bias + row));
        if (a.accumulate) acc[t] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), acc[t]);
        _mm512_mask_storeu_ps(out, mask, acc[t]);
    }
}

inline void write_sums(const MatmulArgs& a, int panel_index, int64_t token, const float* sums) {
    __m512 acc[1] = {_mm512_loadu_ps(sums)};
    write_rows(a, panel_index, token, acc);
}

template <Format F, int T>
void tile(const MatmulArgs& a, int panel_index, int64_t token) {
    __m512 acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
    const uint8_t* panel = a.w->panels + panel_index * a.w->panel_bytes;
    if constexpr (is_quantised(F)) {
        quantised_tile<F, T>(a, panel, token, acc);
    } else {
        float_tile<F, T>(a, panel, token, acc);
    }
    write_rows(a, panel_index, token, acc);
}

}  // namespace
