// Matmul tiles for AVX-512 with VNNI: 16 rows per panel, one row per 32-bit lane.
//
// vpdpbusd multiplies unsigned weight codes with signed activations, four columns of sixteen rows
// at once, exactly. Floor: two of them a cycle, 128 products; a 4-bit block of one token takes 8
// and an epilogue of 4 float operations.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kPanelRows = 16;
constexpr int kMaxTile = 12;

inline __m512 halves_to_float(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512i four_columns(const int8_t* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

template <Format F, int T>
inline void finish_block(const __m512i (&dot)[T], __m512 d, __m512 m, const MatmulArgs& a,
                         int64_t scale_index, int64_t scale_stride, __m512 (&acc)[T]) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const int64_t at = scale_index + t * scale_stride;
        __m512i exact = dot[t];
        if (F == Format::kQ4Offset) {
            exact = _mm512_sub_epi32(exact, _mm512_set1_epi32(a.xq.sum[at] * 8));
        } else if (F == Format::kQ8Offset) {
            exact = _mm512_sub_epi32(exact, _mm512_set1_epi32(a.xq.sum[at] * 128));
        }
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), d);
        acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(a.xq.d[at]), acc[t]);
        if (F == Format::kQ4Min) acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(a.xq.s[at]), acc[t]);
    }
}

template <Format F, int T>
inline void quantised_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token,
                           __m512 (&acc)[T]) {
    constexpr bool kFourBit = F != Format::kQ8Offset;
    constexpr int kScaleBytes = F == Format::kQ4Min ? 64 : 32;
    constexpr int kCodeBytes = kFourBit ? 256 : 512;
    const int64_t columns = a.xq.columns;
    const int blocks = static_cast<int>(columns / kBlock);
    const int8_t* x = a.xq.q + token * columns;
    const __m512i low = _mm512_set1_epi8(0x0F);
    for (int b = 0; b < blocks; ++b) {
        const __m512 d = halves_to_float(panel);
        const __m512 m = F == Format::kQ4Min ? halves_to_float(panel + 32) : _mm512_setzero_ps();
        const uint8_t* codes = panel + kScaleBytes;
        // The streams of panels outrun the hardware prefetcher from the shared cache.
        _mm_prefetch(reinterpret_cast<const char*>(panel + 2048), _MM_HINT_T0);
        __m512i dot[T];
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) dot[t] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) {
            __m512i first, second;  // columns 8p to 8p+3, and 8p+4 to 8p+7
            if (kFourBit) {
                const __m512i both = _mm512_loadu_si512(codes + p * 64);
                first = _mm512_and_si512(both, low);
                second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
                _mm_prefetch(reinterpret_cast<const char*>(codes + p * 64 + 2048), _MM_HINT_T0);
            } else {
                first = _mm512_loadu_si512(codes + p * 128);
                second = _mm512_loadu_si512(codes + p * 128 + 64);
                _mm_prefetch(reinterpret_cast<const char*>(codes + p * 128 + 2048), _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char*>(codes + p * 128 + 2112), _MM_HINT_T0);
            }
#pragma GCC unroll 16
            for (int t = 0; t < T; ++t) {
                const int8_t* xt = x + t * columns + b * kBlock + p * 8;
                dot[t] = _mm512_dpbusd_epi32(dot[t], first, four_columns(xt));
                dot[t] = _mm512_dpbusd_epi32(dot[t], second, four_columns(xt + 4));
            }
        }
        finish_block<F, T>(dot, d, m, a, token * blocks + b, blocks, acc);
        panel = codes + kCodeBytes;
    }
}

template <Format F>
inline __m512 float_column(const uint8_t* panel, int64_t column) {
    if (F == Format::kF32) return _mm512_loadu_ps(panel + column * 64);
    if (F == Format::kF16) return halves_to_float(panel + column * 32);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + column * 32));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <Format F, int T>
inline void float_tile(const MatmulArgs& a, const uint8_t* panel, int64_t token, __m512 (&acc)[T]) {
    const int64_t columns = a.w->columns;
    const float* x = a.x + token * columns;
    for (int64_t k = 0; k < columns; ++k) {
        const __m512 w = float_column<F>(panel, k);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * columns + k]), acc[t]);
        }
    }
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

}  // namespace
