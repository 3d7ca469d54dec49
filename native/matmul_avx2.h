// Matmul tiles for AVX2 with FMA and F16C: 8 rows per panel, one row per 32-bit lane.
//
// vpmaddubsw multiplies unsigned codes with signed activations and adds pairs in int16. Codes are
// taken four bits at a time, so a whole block of 32 sums in int16 without overflow (8 groups of
// two products of at most 15 * 127 each: 30,480) and is widened once. Eight-bit codes are two
// four-bit planes. Floor of a 4-bit block and token: 8 multiplies, 8 adds, 1 widening, 4 floats.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 8;
constexpr int kMaxTile = 4;

inline __m256 halves_to_float(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256i four_columns(const int8_t* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

inline __m256i load_codes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <int T>
inline void zero(__m256i (&v)[T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) v[t] = _mm256_setzero_si256();
}

inline __m256i multiply_add(__m256i acc, __m256i codes, const int8_t* x) {
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, four_columns(x)));
}

// Exact dot products of one block of four-bit codes: 8 rows, T tokens.
template <int T>
inline void block_dot4(const uint8_t* codes, const int8_t* x, int64_t stride, __m256i (&dot)[T]) {
    const __m256i low = _mm256_set1_epi8(0x0F);
    zero(dot);
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
        const __m256i both = load_codes(codes + p * 32);
        const __m256i first = _mm256_and_si256(both, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            dot[t] = multiply_add(dot[t], first, x + t * stride + p * 8);
            dot[t] = multiply_add(dot[t], second, x + t * stride + p * 8 + 4);
        }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) dot[t] = _mm256_madd_epi16(dot[t], ones);
}

// The same for eight-bit codes: 16 times the upper plane plus the lower.
template <int T>
inline void block_dot8(const uint8_t* codes, const int8_t* x, int64_t stride, __m256i (&dot)[T]) {
    const __m256i low = _mm256_set1_epi8(0x0F);
    __m256i upper[T];
    zero(dot);
    zero(upper);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
        const __m256i code = load_codes(codes + g * 32);
        const __m256i first = _mm256_and_si256(code, low);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(code, 4), low);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            dot[t] = multiply_add(dot[t], first, x + t * stride + g * 4);
            upper[t] = multiply_add(upper[t], second, x + t * stride + g * 4);
        }
    }
    const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        dot[t] = _mm256_add_epi32(_mm256_madd_epi16(dot[t], ones),
                                  _mm256_madd_epi16(upper[t], sixteens));
    }
}

template <Format F, int T>
inline void finish_block(const __m256i (&dot)[T], __m256 d, __m256 m, const MatmulArgs& a,
                         int64_t scale_index, int64_t scale_stride, __m256 (&acc)[T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const int64_t at = scale_index + t * scale_stride;
        __m256i exact = dot[t];
        if (F == Format::kQ4Offset) {
            exact = _mm256_sub_epi32(exact, _mm256_set1_epi32(a.xq.sum[at] * 8));
        } else if (F == Format::kQ8Offset) {
            exact = _mm256_sub_epi32(exact, _mm256_set1_epi32(a.xq.sum[at] * 128));
        }
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), d);
        acc[t] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(a.xq.d[at]), acc[t]);
        if (F == Format::kQ4Min) acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(a.xq.s[at]), acc[t]);
    }
}

template <Format F, int T>
inline void quantised_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                           __m256 (&acc)[T]) {
    constexpr bool kFourBit = F != Format::kQ8Offset;
    constexpr int kScaleBytes = F == Format::kQ4Min ? 32 : 16;
    constexpr int kCodeBytes = kFourBit ? 128 : 256;
    const int64_t columns = a.xq.columns;
    const int blocks = static_cast<int>(columns / kBlock);
    const int8_t* x = a.xq.q + token * columns;
    for (int b = 0; b < blocks; ++b) {
        const __m256 d = halves_to_float(panel);
        const __m256 m = F == Format::kQ4Min ? halves_to_float(panel + 16) : _mm256_setzero_ps();
        const uint8_t* codes = panel + kScaleBytes;
        __m256i dot[T];
        if (kFourBit) {
            block_dot4<T>(codes, x + b * kBlock, columns, dot);
        } else {
            block_dot8<T>(codes, x + b * kBlock, columns, dot);
        }
        finish_block<F, T>(dot, d, m, a, token * blocks + b, blocks, acc);
        panel = codes + kCodeBytes;
    }
}

template <Format F>
inline __m256 float_column(const uint8_t* panel, int64_t column) {
    if (F == Format::kF32)
        return _mm256_loadu_ps(reinterpret_cast<const float*>(panel) + column * 8);
    if (F == Format::kF16) return halves_to_float(panel + column * 16);
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + column * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <Format F, int T>
inline void float_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token, __m256 (&acc)[T]) {
    const int64_t columns = a.w->columns;
    const float* x = a.x + token * columns;
    for (int64_t k = 0; k < columns; ++k) {
        const __m256 w = float_column<F>(panel, k);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[t * columns + k]), acc[t]);
        }
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
    const int row = panel_index * kPanelRows;
    const int rows = a.w->rows - row < kPanelRows ? a.w->rows - row : kPanelRows;
    for (int t = 0; t < T; ++t) {
        float* out = a.out + (token + t) * a.out_stride + row;
        float lanes[kPanelRows];
        _mm256_storeu_ps(lanes, acc[t]);
        for (int r = 0; r < rows; ++r) {
            const float value = a.w->bias ? lanes[r] + a.w->bias[row + r] : lanes[r];
            out[r] = a.accumulate ? out[r] + value : value;
        }
    }
}

}  // namespace
