// Matmul tiles for AVX2 with FMA and F16C: 8 rows per panel, one row per 32-bit lane. With AVX-VNNI
// one instruction, vpdpbusd, replaces everything that the next paragraph describes.
//
// vpmaddubsw multiplies unsigned codes with signed activations and adds pairs in int16. Products
// stay in int16 for as many groups as cannot overflow (all eight of a block for codes of at most
// four bits: 8 * 2 * 15 * 127 = 30,480) and are widened then. Where not even one group fits, codes
// are two planes of four bits. Floor of a 4-bit block and token: 8 multiplies, 8 adds, 1 widening,
// 3 or 4 floats.
#pragma once

#include "kernels.h"
#include "prefetch.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 8;
// Accumulators of eight tokens spill, but codes are unpacked half as often as for four, and panels
// from memory are read once: 107 against 103 GMAC/s from cache, 200 against 174 from memory (Q4_1).
constexpr int kMaxTile = 8;

inline __m256 halves_to_float(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256i four_columns(const int8_t* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

// What slices.h is written with.
#if defined(HEDDLE_TILES)
constexpr int kSliceTile = 16;  // rows of a tile register
#else
constexpr int kSliceTile = 6;  // the sums of more tokens do not stay in registers
#endif
using Codes = __m256i;
inline Codes load_codes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

using Rows = __m256;
inline void store_codes(uint8_t* p, Codes codes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
}
inline Rows load_rows(const uint8_t* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}
inline void store_rows(uint8_t* p, Rows rows) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), rows);
}
inline Codes add_bytes(Codes codes, int more) {
    return _mm256_add_epi8(codes, _mm256_set1_epi8(static_cast<char>(more)));
}
inline Codes all_lanes(int32_t v) { return _mm256_set1_epi32(v); }
inline Codes add_lanes(Codes a, Codes b) { return _mm256_add_epi32(a, b); }
inline Rows to_floats(Codes sums) { return _mm256_cvtepi32_ps(sums); }
inline Rows multiply(Rows a, Rows b) { return _mm256_mul_ps(a, b); }
inline Rows fma(Rows a, float b, Rows c) { return _mm256_fmadd_ps(a, _mm256_set1_ps(b), c); }
// The compiler finishes `rows` here. It cannot move this work behind later instructions of tiles.
inline void keep_here(Rows& rows) { asm volatile("" : "+x"(rows)); }
// The part of a format's offset that whole_codes has not subtracted.
constexpr int offset_left(const Layout& layout) { return layout.offset; }
// A dot product that began with kZeroBits, times the scale. `zero` is scaled_zero(scale).
inline Rows scaled_sum(Codes dot, Rows scale, Rows zero) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(dot), scale, zero);
}
inline Rows scaled_zero(Rows scale) { return _mm256_mul_ps(scale, _mm256_set1_ps(-kZero)); }

inline __m256 bytes_to_float(const uint8_t* p, bool is_signed) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes)
                                        : _mm256_cvtepu8_epi32(bytes));
}

// What a super-block shares, per row; of a part of a block, the scale and the negated minimum.
struct Scales {
    __m256 scale, minimum;
};

template <Format F>
inline Scales shared_of(const uint8_t* header) {
    constexpr Layout L = layout_of(F);
    Scales shared = {};
    if constexpr (L.header() > 0) shared.scale = halves_to_float(header);
    if constexpr (L.header() > 2) shared.minimum = halves_to_float(header + 16);
    if constexpr (L.factor != 1.0f) {
        const __m256 factor = _mm256_set1_ps(L.factor);
        shared = {_mm256_mul_ps(shared.scale, factor), _mm256_mul_ps(shared.minimum, factor)};
    }
    return shared;
}

template <Format F>
inline Scales part_scale(const uint8_t* scales, const Scales& shared, int part) {
    constexpr Layout L = layout_of(F);
    const __m256 none = _mm256_setzero_ps();
    if constexpr (L.scale == Scale::kHalf) {
        return {halves_to_float(scales), L.minimum ? halves_to_float(scales + 16) : none};
    } else if constexpr (L.scale == Scale::kShared) {
        return {shared.scale, none};
    } else if constexpr (L.scale == Scale::kE8M0) {
        const __m128i bytes =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + part * kPanelRows));
        const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
        const __m256i least = _mm256_set1_epi32(0x00400000);  // see half_of_e8m0
        return {
            _mm256_mul_ps(_mm256_castsi256_ps(_mm256_max_epi32(bits, least)), _mm256_set1_ps(0.5f)),
            none};
    } else if constexpr (L.scale == Scale::kE4M3) {  // as half_of_e4m3
        const __m128i bytes =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + part * kPanelRows));
        const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7);
        return {_mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(128.0f)), none};
    } else if constexpr (L.scale == Scale::kNibbles) {
        const __m256i both = _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + part * kPanelRows)));
        const __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(15));
        return {_mm256_mul_ps(shared.scale, _mm256_cvtepi32_ps(low)),
                _mm256_mul_ps(shared.minimum, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4)))};
    } else {
        const uint8_t* at = scales + part * kPanelRows;
        const uint8_t* minima = at + L.parts * kPanelRows;
        return {_mm256_mul_ps(shared.scale, bytes_to_float(at, L.scale == Scale::kInt8)),
                L.minimum ? _mm256_mul_ps(shared.minimum, bytes_to_float(minima, false)) : none};
    }
}

// Moves bits [from, from + width) of every byte to `to` and keeps only them.
template <int From, int Width, int To>
inline __m256i move_bits(__m256i v) {
    __m256i moved = v;
    if constexpr (From > To) moved = _mm256_srli_epi16(v, From - To);
    if constexpr (From < To) moved = _mm256_slli_epi16(v, To - From);
    return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(((1 << Width) - 1) << To)));
}

// The stored codes of group G: four columns of eight rows.
template <Format F, int G>
inline __m256i group_codes(const uint8_t* codes) {
    constexpr Layout L = layout_of(F);
    constexpr int kLow = 8 / L.low_bits;  // groups in a byte of the low plane
    const uint8_t* low_at = codes + G / kLow * 32;
    if constexpr (G % (2 * kLow) == 0) prefetch_ahead(low_at);
    const __m256i low = load_codes(low_at);
    if constexpr (L.low_bits == 8) return low;
    __m256i code = move_bits<G % kLow * L.low_bits, L.low_bits, 0>(low);
    if constexpr (L.high_bits > 0) {
        constexpr int kHigh = 8 / L.high_bits;
        const uint8_t* high_at = codes + L.low() * kPanelRows + G / kHigh * 32;
        if constexpr (G % (2 * kHigh) == 0) prefetch_ahead(high_at);
        const __m256i high = load_codes(high_at);
        code = _mm256_or_si256(code,
                               move_bits<G % kHigh * L.high_bits, L.high_bits, L.low_bits>(high));
    }
    return code;
}

// The factors of the activations: the codes, or the table's values for them.
template <Format F, int G>
inline __m256i whole_codes(const uint8_t* codes) {
    constexpr Layout L = layout_of(F);
    const __m256i code = group_codes<F, G>(codes);
    if constexpr (!L.has_table()) return code;
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(L.values())));
    return _mm256_shuffle_epi8(table, code);
}

inline __m256i negated_sums(const BlockScale& scale) {
    int32_t sums;
    std::memcpy(&sums, scale.minus_half_sum, 4);
    return _mm256_set1_epi32(sums);
}

#if defined(__AVXVNNI__)

#define HEDDLE_HAS_SLICES
inline Codes add_products(Codes sums, Codes codes, Codes x) {
    return _mm256_dpbusd_avx_epi32(sums, codes, x);
}

// Adds the exact dot products of groups [G, End).
template <Format F, int T, int G, int End>
inline void add_groups(const uint8_t* codes, const int8_t* x, int64_t columns, __m256i (&dot)[T]) {
    if constexpr (G < End) {
        const __m256i code = whole_codes<F, G>(codes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            dot[t] = _mm256_dpbusd_avx_epi32(dot[t], code, four_columns(x + t * columns + G * 4));
        }
        add_groups<F, T, G + 1, End>(codes, x, columns, dot);
    }
}

// The products of a part, offset included, as numbers that scaled_part multiplies.
template <Format F, int T, int Part>
inline void multiply_part(const uint8_t* codes, const int8_t* x, const BlockScale* scales,
                          int64_t columns, __m256i (&dot)[T]) {
    constexpr Layout L = layout_of(F);
    constexpr int kFirst = Part * kGroups / L.parts, kLast = (Part + 1) * kGroups / L.parts;
    const __m256i factors = _mm256_set1_epi32(offset_factors(L, Part));
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        dot[t] = _mm256_set1_epi32(sums_are_floats(L) ? kZeroBits : 0);
        if constexpr (L.offset != 0) {
            const __m256i sums = negated_sums(scales[t * (columns / kBlock)]);
            dot[t] = _mm256_dpwssd_avx_epi32(dot[t], factors, sums);
        }
    }
    add_groups<F, T, kFirst, kLast>(codes, x, columns, dot);
}

inline __m256 shift_of(__m256 scale) { return scaled_zero(scale); }

// The same of a dot product that multiply_part made.
template <Format F>
inline __m256 scaled_part(__m256i dot, __m256 scale, __m256 shift) {
    if constexpr (sums_are_floats(layout_of(F))) return scaled_sum(dot, scale, shift);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(dot), scale);
}

#else

template <int T>
inline void zero(__m256i (&v)[T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) v[t] = _mm256_setzero_si256();
}

// The number of groups whose summed products fit int16; 0 for codes multiplied as two planes.
constexpr int groups_in_int16(const Layout& layout) {
    const int groups = INT16_MAX / (2 * 127 * layout.top());
    return groups > kGroups ? kGroups : groups;
}

inline __m256i widen(__m256i products, int16_t factor) {
    return _mm256_madd_epi16(products, _mm256_set1_epi16(factor));
}

// Groups [G, End) in one go: int16 sums, then added to dot in int32.
template <Format F, int T, int G, int End>
inline void multiply_run(const uint8_t* codes, const int8_t* x, int64_t columns,
                         __m256i (&products)[T]) {
    if constexpr (G < End) {
        const __m256i code = whole_codes<F, G>(codes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m256i product =
                _mm256_maddubs_epi16(code, four_columns(x + t * columns + G * 4));
            products[t] = _mm256_add_epi16(products[t], product);
        }
        multiply_run<F, T, G + 1, End>(codes, x, columns, products);
    }
}

template <Format F, int T, int G, int End>
inline void multiply_planes(const uint8_t* codes, const int8_t* x, int64_t columns,
                            __m256i (&low)[T], __m256i (&high)[T]) {
    if constexpr (G < End) {
        const __m256i code = whole_codes<F, G>(codes);
        const __m256i first = move_bits<0, 4, 0>(code), second = move_bits<4, 4, 0>(code);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m256i four = four_columns(x + t * columns + G * 4);
            low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(first, four));
            high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(second, four));
        }
        multiply_planes<F, T, G + 1, End>(codes, x, columns, low, high);
    }
}

// Exact dot products of groups [G, End).
template <Format F, int T, int G, int End>
inline void multiply_groups(const uint8_t* codes, const int8_t* x, int64_t columns,
                            __m256i (&dot)[T]) {
    constexpr int kRun = groups_in_int16(layout_of(F));
    __m256i products[T];
    zero(products);
    if constexpr (kRun == 0) {
        __m256i high[T];
        zero(high);
        multiply_planes<F, T, G, End>(codes, x, columns, products, high);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            dot[t] = _mm256_add_epi32(widen(products[t], 1), widen(high[t], 16));
        }
    } else {
        constexpr int kStop = G + kRun < End ? G + kRun : End;
        multiply_run<F, T, G, kStop>(codes, x, columns, products);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) dot[t] = widen(products[t], 1);
        if constexpr (kStop < End) {
            __m256i rest[T];
            multiply_groups<F, T, kStop, End>(codes, x, columns, rest);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) dot[t] = _mm256_add_epi32(dot[t], rest[t]);
        }
    }
}

template <Format F, int T, int Part>
inline void multiply_part(const uint8_t* codes, const int8_t* x, const BlockScale* scales,
                          int64_t columns, __m256i (&dot)[T]) {
    constexpr Layout L = layout_of(F);
    constexpr int kFirst = Part * kGroups / L.parts, kLast = (Part + 1) * kGroups / L.parts;
    multiply_groups<F, T, kFirst, kLast>(codes, x, columns, dot);
    if constexpr (L.offset != 0) {
        const __m256i factors = _mm256_set1_epi32(offset_factors(L, Part));
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m256i sums = negated_sums(scales[t * (columns / kBlock)]);
            dot[t] = _mm256_add_epi32(dot[t], _mm256_madd_epi16(factors, sums));
        }
    }
}

// Sums are integers here, and the shift is not used.
template <Format F>
inline __m256 scaled_part(__m256i dot, __m256 scale, __m256) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(dot), scale);
}

inline __m256 shift_of(__m256 scale) { return scale; }

#endif

// One part of a block: exact dot products, then one fused multiply-add per row and token, and one
// for the minimum.
template <Format F, int T, int Part>
inline void add_part(const uint8_t* block, const Scales& shared, const int8_t* x,
                     const BlockScale* scales, int64_t columns, __m256 (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    const int64_t blocks = columns / kBlock;
    __m256i dot[T];
    multiply_part<F, T, Part>(block + L.scales() * kPanelRows, x, scales, columns, dot);
    const Scales part = part_scale<F>(block, shared, Part);
    const __m256 shift = shift_of(part.scale);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const BlockScale& scale = scales[t * blocks];
        const __m256 scaled = scaled_part<F>(dot[t], part.scale, shift);
        acc[t] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(scale.d), acc[t]);
        if constexpr (L.minimum) {
            const float s = L.parts == 1 ? scale.s : scale.half_s[Part];
            acc[t] = _mm256_fmadd_ps(part.minimum, _mm256_set1_ps(s), acc[t]);
        }
    }
}

template <Format F, int T>
inline void quantised_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                           __m256 (&acc)[T]) {
    constexpr Layout L = layout_of(F);
    const int64_t columns = a.xq.columns;
    const int8_t* x = a.xq.q + token * columns;
    const BlockScale* scales = a.xq.scales + token * (columns / kBlock);
    for (int64_t at = 0; at < a.w->columns; at += L.blocks * kBlock) {
        const Scales shared = shared_of<F>(panel);
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
inline __m256 float_column(const uint8_t* panel, int64_t column) {
    panel += column * float_bytes(F) * kPanelRows;
    if (F == Format::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(panel));
    if (F == Format::kF16) return halves_to_float(panel);
    if (F == Format::kI8) {
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(panel));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    }
    if (F == Format::kF8E4M3) {  // sign and the rest as a half, which is 2**-8 times the number
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(panel));
        const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
        return _mm256_cvtph_ps(_mm_and_si128(bits, _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <int T>
inline void add_column(__m256 w, const float* x, int64_t stride, __m256 (&acc)[T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        acc[t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[t * stride]), acc[t]);
    }
}

template <Format F, int T>
inline void float_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token, __m256 (&acc)[T]) {
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
            const __m256 stored = _mm256_loadu_ps(reinterpret_cast<const float*>(panel));
            const __m256 scale = _mm256_mul_ps(stored, _mm256_set1_ps(256.0f));
            panel += 4 * kPanelRows;
            for (int64_t k = 0; k < kRun; ++k) {
                const __m256 w = _mm256_mul_ps(float_column<F>(panel, k), scale);
                add_column<T>(w, x + first + k, stride, acc);
            }
            panel += kRun * kPanelRows;
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
    __m256 acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
    const uint8_t* panel = a.w->panels + panel_index * a.w->panel_bytes;
    if constexpr (is_quantised(F)) {
        quantised_tile<F, T>(a, panel, token, acc);
    } else {
        float_tile<F, T>(a, panel, token, acc);
    }
    for (int t = 0; t < T; ++t) {
        float lanes[kPanelRows];
        _mm256_storeu_ps(lanes, acc[t]);
        write_sums(a, panel_index, token + t, lanes);
    }
}

}  // namespace
