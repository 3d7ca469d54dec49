// Sixteen float lanes on every machine.
//
// Every float kernel outside the matmuls is written once over V16. The lane count, the order of
// reductions and the places where a product is fused are fixed here, so that all instruction
// levels compute the same bits: AVX-512 holds a V16 in one register, AVX2 in two, NEON in four, the
// portable version in an array.
//
// Include this file only in translation units that are compiled once per instruction level.
// Everything is in an anonymous namespace, because the same name has different code in each unit.
// For the same reason this file uses no templates of the standard library.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HEDDLE_ISA_AVX512) || defined(HEDDLE_ISA_AVX2)
#include <immintrin.h>
#elif defined(HEDDLE_ISA_NEON)
#include <arm_neon.h>
#endif

namespace {

#if defined(HEDDLE_ISA_AVX512)

struct V16 {
    __m512 r;
};

inline V16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.r); }
inline V16 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, V16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V16 operator+(V16 a, V16 b) { return {_mm512_add_ps(a.r, b.r)}; }
inline V16 operator-(V16 a, V16 b) { return {_mm512_sub_ps(a.r, b.r)}; }
inline V16 operator*(V16 a, V16 b) { return {_mm512_mul_ps(a.r, b.r)}; }
inline V16 operator/(V16 a, V16 b) { return {_mm512_div_ps(a.r, b.r)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
// As the instruction: the second operand where either is NaN.
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.r, b.r)}; }
inline V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.r, b.r)}; }
inline V16 abs(V16 a) { return {_mm512_abs_ps(a.r)}; }
// a where x < y, else b.
inline V16 select_less(V16 x, V16 y, V16 a, V16 b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.r, y.r, _CMP_LT_OQ), b.r, a.r)};
}
// Each lane's bits shifted left by 23: the low nine become sign and exponent.
inline V16 low_bits_to_exponent(V16 a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.r), 23))};
}
inline void store_int8(int8_t* p, V16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.r)));
}
inline V16 load_int8(const int8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
}

// Sixteen lanes of integers, and sixteen lanes of four int8 codes.
struct I16 {
    __m512i r;
};
struct Codes4 {
    __m512i r;  // plus 128, as the instruction multiplies unsigned codes with signed ones
};
inline Codes4 load_codes4(const int8_t* p) {
    return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
}
inline I16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
// What sums of products of codes with others begin with; `sum` is that of the others.
inline I16 first_sum(int32_t sum) { return splat_int(-128 * sum); }
// Adds each lane's dot product of its four codes with the four at p to `sums`.
inline I16 add_dot4(I16 sums, Codes4 codes, const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm512_dpbusd_epi32(sums.r, codes.r, _mm512_set1_epi32(four))};
}
// As they are, for products with codes that are not negative.
struct Signed4 {
    __m512i r;
};
inline Signed4 load_signed4(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
// Adds each lane's dot product of its four codes with the four at p, none of them negative.
inline I16 add_dot4(I16 sums, Signed4 codes, const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm512_dpbusd_epi32(sums.r, _mm512_set1_epi32(four), codes.r)};
}
// Sixteen lanes of four codes from 0 to 15, each times two: the lower or the upper halves of bytes.
struct Doubled4 {
    __m512i r;
};
inline Doubled4 load_doubled4(const uint8_t* p, bool upper) {
    const __m512i pairs = _mm512_loadu_si512(p);
    const __m512i shifted = upper ? _mm512_srli_epi16(pairs, 3) : _mm512_slli_epi16(pairs, 1);
    return {_mm512_and_si512(shifted, _mm512_set1_epi8(30))};
}
inline I16 add_dot4(I16 sums, Doubled4 codes, const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {_mm512_dpbusd_epi32(sums.r, codes.r, _mm512_set1_epi32(four))};
}
inline V16 to_floats(I16 a) { return {_mm512_cvtepi32_ps(a.r)}; }

// Each lane gets the lane whose number differs in the bit Distance.
template <int Distance>
inline V16 swap_lanes(V16 a) {
    if constexpr (Distance == 8) return {_mm512_shuffle_f32x4(a.r, a.r, 0x4E)};
    if constexpr (Distance == 4) return {_mm512_shuffle_f32x4(a.r, a.r, 0xB1)};
    return {_mm512_permute_ps(a.r, Distance == 2 ? 0x4E : 0xB1)};
}

#elif defined(HEDDLE_ISA_AVX2)

struct V16 {
    __m256 lo, hi;
};

inline V16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline V16 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_f16(uint16_t* p, V16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                     _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V16 operator+(V16 a, V16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline V16 operator-(V16 a, V16 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline V16 operator*(V16 a, V16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline V16 operator/(V16 a, V16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline V16 fma(V16 a, V16 b, V16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline V16 abs(V16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline V16 select_less(V16 x, V16 y, V16 a, V16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}
inline __m256 shifted_half(__m256 a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}
inline V16 low_bits_to_exponent(V16 a) { return {shifted_half(a.lo), shifted_half(a.hi)}; }
inline void store_int8(int8_t* p, V16 a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
inline __m256 load_int8_half(const int8_t* p) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}
inline V16 load_int8(const int8_t* p) { return {load_int8_half(p), load_int8_half(p + 8)}; }

struct I16 {
    __m256i lo, hi;
};
inline V16 to_floats(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline __m256i load_32(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i four_of(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
inline I16 splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
struct Signed4 {
    __m256i lo, hi;
};
inline Signed4 load_signed4(const int8_t* p) { return {load_32(p), load_32(p + 32)}; }
#if defined(HEDDLE_ISA_AVXVNNI)
inline __m256i dot4_half(__m256i sums, __m256i codes, __m256i four) {
    return _mm256_dpbusd_avx_epi32(sums, codes, four);
}
struct Codes4 {
    __m256i lo, hi;  // plus 128, as the instruction multiplies unsigned codes with signed ones
};
inline Codes4 load_codes4(const int8_t* p) {
    const __m256i offset = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(load_32(p), offset), _mm256_xor_si256(load_32(p + 32), offset)};
}
inline I16 first_sum(int32_t sum) { return splat_int(-128 * sum); }
inline I16 add_dot4(I16 sums, Codes4 codes, const int8_t* p) {
    const __m256i four = four_of(p);
    return {dot4_half(sums.lo, codes.lo, four), dot4_half(sums.hi, codes.hi, four)};
}
#else
// vpmaddubsw multiplies unsigned with signed codes: the sign goes to the other factor. Sums of two
// products fit int16, because no code is -128: 2 * 127 * 127 = 32,258.
struct Codes4 {
    __m256i lo, hi, size_lo, size_hi;
};
inline Codes4 load_codes4(const int8_t* p) {
    const __m256i lo = load_32(p), hi = load_32(p + 32);
    return {lo, hi, _mm256_abs_epi8(lo), _mm256_abs_epi8(hi)};
}
inline I16 first_sum(int32_t) { return splat_int(0); }
inline __m256i dot4_half(__m256i sums, __m256i codes, __m256i four) {
    const __m256i pairs = _mm256_maddubs_epi16(codes, four);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I16 add_dot4(I16 sums, Codes4 codes, const int8_t* p) {
    const __m256i four = four_of(p);
    return {dot4_half(sums.lo, codes.size_lo, _mm256_sign_epi8(four, codes.lo)),
            dot4_half(sums.hi, codes.size_hi, _mm256_sign_epi8(four, codes.hi))};
}
#endif
inline I16 add_dot4(I16 sums, Signed4 codes, const int8_t* p) {
    const __m256i four = four_of(p);
    return {dot4_half(sums.lo, four, codes.lo), dot4_half(sums.hi, four, codes.hi)};
}
struct Doubled4 {
    __m256i lo, hi;
};
inline __m256i doubled_half(const uint8_t* p, bool upper) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i shifted = upper ? _mm256_srli_epi16(pairs, 3) : _mm256_slli_epi16(pairs, 1);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(30));
}
inline Doubled4 load_doubled4(const uint8_t* p, bool upper) {
    return {doubled_half(p, upper), doubled_half(p + 32, upper)};
}
inline I16 add_dot4(I16 sums, Doubled4 codes, const int8_t* p) {
    const __m256i four = four_of(p);
    return {dot4_half(sums.lo, codes.lo, four), dot4_half(sums.hi, codes.hi, four)};
}

template <int Distance>
inline V16 swap_lanes(V16 a) {
    if constexpr (Distance == 8) return {a.hi, a.lo};
    if constexpr (Distance == 4) {
        return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
    }
    constexpr int kOrder = Distance == 2 ? 0x4E : 0xB1;
    return {_mm256_permute_ps(a.lo, kOrder), _mm256_permute_ps(a.hi, kOrder)};
}

#elif defined(HEDDLE_ISA_NEON)

struct V16 {
    float32x4_t r[4];
};

template <typename F>
inline V16 quarters(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}
#define HEDDLE_QUARTERS(expression) return quarters([&](int i) { return expression; })

// Not NEON's own instruction: it returns NaN where the other levels return the second operand.
inline float32x4_t greater(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

inline V16 splat(float x) {
    const float32x4_t four = vdupq_n_f32(x);
    return {{four, four, four, four}};
}
inline V16 load(const float* p) { HEDDLE_QUARTERS(vld1q_f32(p + i * 4)); }
inline void store(float* p, V16 a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + i * 4, a.r[i]);
}
inline V16 load_f16(const uint16_t* p) {
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p));
    const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low),
             vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)}};
}
inline void store_f16(uint16_t* p, V16 a) {
    const float16x8_t low = vcvt_high_f16_f32(vcvt_f16_f32(a.r[0]), a.r[1]);
    const float16x8_t high = vcvt_high_f16_f32(vcvt_f16_f32(a.r[2]), a.r[3]);
    vst1q_u16(p, vreinterpretq_u16_f16(low));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(high));
}
inline V16 operator+(V16 a, V16 b) { HEDDLE_QUARTERS(vaddq_f32(a.r[i], b.r[i])); }
inline V16 operator-(V16 a, V16 b) { HEDDLE_QUARTERS(vsubq_f32(a.r[i], b.r[i])); }
inline V16 operator*(V16 a, V16 b) { HEDDLE_QUARTERS(vmulq_f32(a.r[i], b.r[i])); }
inline V16 operator/(V16 a, V16 b) { HEDDLE_QUARTERS(vdivq_f32(a.r[i], b.r[i])); }
inline V16 fma(V16 a, V16 b, V16 c) { HEDDLE_QUARTERS(vfmaq_f32(c.r[i], a.r[i], b.r[i])); }
inline V16 max(V16 a, V16 b) { HEDDLE_QUARTERS(greater(a.r[i], b.r[i])); }
inline V16 min(V16 a, V16 b) {
    HEDDLE_QUARTERS(vbslq_f32(vcltq_f32(a.r[i], b.r[i]), a.r[i], b.r[i]));
}
inline V16 abs(V16 a) { HEDDLE_QUARTERS(vabsq_f32(a.r[i])); }
inline V16 select_less(V16 x, V16 y, V16 a, V16 b) {
    HEDDLE_QUARTERS(vbslq_f32(vcltq_f32(x.r[i], y.r[i]), a.r[i], b.r[i]));
}
inline V16 low_bits_to_exponent(V16 a) {
    HEDDLE_QUARTERS(vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(a.r[i]), 23)));
}
inline void store_int8(int8_t* p, V16 a) {
    const auto words = [&](int i) {
        const int16x4_t first = vmovn_s32(vcvtnq_s32_f32(a.r[i]));
        return vmovn_high_s32(first, vcvtnq_s32_f32(a.r[i + 1]));
    };
    vst1q_s8(p, vmovn_high_s16(vmovn_s16(words(0)), words(2)));
}
inline V16 load_int8(const int8_t* p) {
    const int8x16_t codes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}

struct I16 {
    int32x4_t r[4];
};
struct Codes4 {
    int8x16_t r[4];
};
inline Codes4 load_codes4(const int8_t* p) {
    return {{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}};
}
inline I16 splat_int(int32_t x) {
    const int32x4_t four = vdupq_n_s32(x);
    return {{four, four, four, four}};
}
inline I16 first_sum(int32_t) { return splat_int(0); }
using Signed4 = Codes4;
inline Signed4 load_signed4(const int8_t* p) { return load_codes4(p); }
using Doubled4 = Codes4;
inline Doubled4 load_doubled4(const uint8_t* p, bool upper) {
    Doubled4 codes;
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t pairs = vld1q_u8(p + i * 16);
        const uint8x16_t shifted = upper ? vshrq_n_u8(pairs, 3) : vshlq_n_u8(pairs, 1);
        codes.r[i] = vreinterpretq_s8_u8(vandq_u8(shifted, vdupq_n_u8(30)));
    }
    return codes;
}
inline I16 add_dot4(I16 sums, Codes4 codes, const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    const int8x16_t others = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int i = 0; i < 4; ++i) sums.r[i] = vdotq_s32(sums.r[i], codes.r[i], others);
    return sums;
}
inline V16 to_floats(I16 a) { HEDDLE_QUARTERS(vcvtq_f32_s32(a.r[i])); }

template <int Distance>
inline V16 swap_lanes(V16 a) {
    if constexpr (Distance >= 4) HEDDLE_QUARTERS(a.r[i ^ (Distance / 4)]);
    if constexpr (Distance == 2) HEDDLE_QUARTERS(vextq_f32(a.r[i], a.r[i], 2));
    HEDDLE_QUARTERS(vrev64q_f32(a.r[i]));
}

#else  // portable

struct V16 {
    float v[16];
};

#define HEDDLE_LANES(expression)                        \
    V16 r;                                              \
    for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
    return r

inline uint32_t float_bits(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}
inline float bits_float(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}
// IEEE binary16 to binary32; subnormals are scaled by an exact product.
inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t rest = h & 0x7FFF;
    if (rest >= 0x7C00) return bits_float(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    if (rest < 0x0400) return bits_float(sign | float_bits(static_cast<float>(rest) * 0x1p-24f));
    return bits_float(sign | ((rest << 13) + 0x38000000));
}
// Half of an E8M0 scale, 2 ** (e - 128), since the table of E2M1 holds twice its values. 255,
// E8M0's NaN, gives infinity. Infinity times an activation of zero is NaN, so a NaN scale is never
// lost.
inline float half_of_e8m0(uint8_t e) {
    const uint32_t bits = static_cast<uint32_t>(e) << 23;
    return bits_float(bits > 0x00400000 ? bits : 0x00400000) * 0.5f;
}
// Half of an E4M3 number without sign. As an f16 its bits mean 2 ** -8 of its value, zero as an
// exponent included. (As a float32, small scales would be subnormal factors, which are slow.)
inline float half_of_e4m3(uint8_t e) {
    return half_to_float(static_cast<uint16_t>(e << 7)) * 128.0f;
}
// The E4M3 number of a code: the half of its bits is 2**-8 times the number.
inline float float_of_e4m3(uint8_t code) {
    const int rest = code & 0x7F;
    if (rest == 0x7F) return __builtin_nanf("");
    return half_to_float(static_cast<uint16_t>((code & 0x80) << 8 | rest << 7)) * 256.0f;
}
// Round to nearest, ties to even, as the conversion instruction does.
inline uint16_t float_to_half(float x) {
    const uint32_t bits = float_bits(x);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    const uint32_t rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return sign | 0x7E00 | ((rest >> 13) & 0x1FF);
    if (rest >= 0x477FF000) return sign | 0x7C00;
    if (rest < 0x38800000) {
        // Adding 0.5 leaves the value in units of 2**-24 in the low bits, rounded by the addition.
        return sign | static_cast<uint16_t>(float_bits(bits_float(rest) + 0.5f) - 0x3F000000);
    }
    const uint32_t rounded = rest + 0xFFF + ((rest >> 13) & 1);
    return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

inline V16 splat(float x) { HEDDLE_LANES(x); }
inline V16 load(const float* p) { HEDDLE_LANES(p[i]); }
inline void store(float* p, V16 a) { std::memcpy(p, a.v, sizeof a.v); }
inline V16 load_f16(const uint16_t* p) { HEDDLE_LANES(half_to_float(p[i])); }
inline void store_f16(uint16_t* p, V16 a) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}
inline V16 operator+(V16 a, V16 b) { HEDDLE_LANES(a.v[i] + b.v[i]); }
inline V16 operator-(V16 a, V16 b) { HEDDLE_LANES(a.v[i] - b.v[i]); }
inline V16 operator*(V16 a, V16 b) { HEDDLE_LANES(a.v[i] * b.v[i]); }
inline V16 operator/(V16 a, V16 b) { HEDDLE_LANES(a.v[i] / b.v[i]); }
inline V16 fma(V16 a, V16 b, V16 c) { HEDDLE_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
inline V16 max(V16 a, V16 b) { HEDDLE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline V16 min(V16 a, V16 b) { HEDDLE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline V16 abs(V16 a) { HEDDLE_LANES(__builtin_fabsf(a.v[i])); }
inline V16 select_less(V16 x, V16 y, V16 a, V16 b) {
    HEDDLE_LANES(x.v[i] < y.v[i] ? a.v[i] : b.v[i]);
}
inline V16 low_bits_to_exponent(V16 a) { HEDDLE_LANES(bits_float(float_bits(a.v[i]) << 23)); }
// Adding and taking away 1.5 * 2**23 rounds to nearest, ties to even, for |x| < 2**22.
inline void store_int8(int8_t* p, V16 a) {
    for (int i = 0; i < 16; ++i) {
        p[i] = static_cast<int8_t>((a.v[i] + 12582912.0f) - 12582912.0f);
    }
}
inline V16 load_int8(const int8_t* p) { HEDDLE_LANES(static_cast<float>(p[i])); }

struct I16 {
    int32_t v[16];
};
struct Codes4 {
    int8_t v[64];
};
inline Codes4 load_codes4(const int8_t* p) {
    Codes4 codes;
    std::memcpy(codes.v, p, sizeof codes.v);
    return codes;
}
inline I16 splat_int(int32_t x) {
    I16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = x;
    return r;
}
inline I16 first_sum(int32_t) { return splat_int(0); }
using Signed4 = Codes4;
inline Signed4 load_signed4(const int8_t* p) { return load_codes4(p); }
using Doubled4 = Codes4;
inline Doubled4 load_doubled4(const uint8_t* p, bool upper) {
    Doubled4 codes;
    for (int i = 0; i < 64; ++i) {
        codes.v[i] = static_cast<int8_t>(2 * (upper ? p[i] >> 4 : p[i] & 15));
    }
    return codes;
}
inline I16 add_dot4(I16 sums, Codes4 codes, const int8_t* p) {
    for (int i = 0; i < 64; ++i) sums.v[i / 4] += codes.v[i] * p[i % 4];
    return sums;
}
inline V16 to_floats(I16 a) { HEDDLE_LANES(static_cast<float>(a.v[i])); }
template <int Distance>
inline V16 swap_lanes(V16 a) {
    HEDDLE_LANES(a.v[i ^ Distance]);
}

#endif

// Reductions fold halves: lane i with i + 8, then i + 4, i + 2, i + 1. The order is part of the
// numerics; do not replace it by a library reduction. (A maximum and a sum of integers have no
// order to keep.)
#if defined(HEDDLE_ISA_AVX512) || defined(HEDDLE_ISA_AVX2)
#if defined(HEDDLE_ISA_AVX512)
inline __m256 low_half(V16 a) { return _mm512_castps512_ps256(a.r); }
inline __m256 high_half(V16 a) { return _mm512_extractf32x8_ps(a.r, 1); }
#else
inline __m256 low_half(V16 a) { return a.lo; }
inline __m256 high_half(V16 a) { return a.hi; }
#endif
inline float reduce_add(V16 a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(V16 a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// The largest lane of two vectors without signs; NaN if one is. As integers, the bits of such
// floats have the same order, and those of NaN come last.
#if defined(HEDDLE_ISA_AVX512)
inline __m256i larger_half(V16 a, V16 b) {
    const __m512i m = _mm512_max_epi32(_mm512_castps_si512(a.r), _mm512_castps_si512(b.r));
    return _mm256_max_epi32(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
}
#else
inline __m256i larger_half(V16 a, V16 b) {
    return _mm256_max_epi32(_mm256_max_epi32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)),
                            _mm256_max_epi32(_mm256_castps_si256(b.lo), _mm256_castps_si256(b.hi)));
}
#endif
inline float peak_of(V16 a, V16 b) {
    const __m256i eight = larger_half(a, b);
    const __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1))));
}
inline int32_t sum_of_16(const int8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i shifted = _mm_xor_si128(codes, _mm_set1_epi8(-128));  // plus 128, unsigned
    const __m128i sums = _mm_sad_epu8(shifted, _mm_setzero_si128());
    return static_cast<int32_t>(_mm_cvtsi128_si64(sums) + _mm_extract_epi64(sums, 1)) - 16 * 128;
}
#elif defined(HEDDLE_ISA_NEON)
inline float reduce_add(V16 a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.r[0], a.r[2]), vaddq_f32(a.r[1], a.r[3]));
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
inline float reduce_max(V16 a) {
    const float32x4_t four = greater(greater(a.r[0], a.r[2]), greater(a.r[1], a.r[3]));
    const float32x4_t two = greater(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(greater(two, vextq_f32(two, two, 1)), 0);
}
inline float peak_of(V16 a, V16 b) {
    const auto larger = [&](int i) {
        return vmaxq_s32(vreinterpretq_s32_f32(a.r[i]), vreinterpretq_s32_f32(b.r[i]));
    };
    const int32x4_t four =
        vmaxq_s32(vmaxq_s32(larger(0), larger(1)), vmaxq_s32(larger(2), larger(3)));
    return vgetq_lane_f32(vreinterpretq_f32_s32(vdupq_n_s32(vmaxvq_s32(four))), 0);
}
inline int32_t sum_of_16(const int8_t* p) { return vaddlvq_s8(vld1q_s8(p)); }
#else
inline float reduce_add(V16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    }
    return a.v[0];
}
inline float reduce_max(V16 a) {
    float peak = a.v[0];
    for (int i = 1; i < 16; ++i) peak = peak > a.v[i] ? peak : a.v[i];
    return peak;
}
inline float peak_of(V16 a, V16 b) {
    uint32_t peak = 0;
    for (int i = 0; i < 16; ++i) {
        const uint32_t x = float_bits(a.v[i]), y = float_bits(b.v[i]);
        peak = peak > x ? peak : x;
        peak = peak > y ? peak : y;
    }
    return bits_float(peak);
}
inline int32_t sum_of_16(const int8_t* p) {
    int32_t total = 0;
    for (int i = 0; i < 16; ++i) total += p[i];
    return total;
}
#endif

inline float first_lane(V16 a) {
    float v[16];
    store(v, a);
    return v[0];
}

// The first n < 16 values of p, the other lanes `fill`.
inline V16 load_partial(const float* p, int n, float fill) {
    float v[16];
    for (int i = 0; i < 16; ++i) v[i] = i < n ? p[i] : fill;
    return load(v);
}
inline void store_partial(float* p, int n, V16 a) {
    float v[16];
    store(v, a);
    std::memcpy(p, v, static_cast<size_t>(n) * sizeof(float));
}

// Adding this leaves the number nearest to a small x, plus 127, in the sum's low bits.
constexpr float kExponentMagic = 12582912.0f + 127.0f;
constexpr float kLog2E = 1.44269504f;

// 2**n for integral n in [-127, 127]; for -127, 0.
inline V16 power_of_two(V16 n) { return low_bits_to_exponent(n + splat(kExponentMagic)); }

// exp(x) within 2 ulp on [-87.33, 88.37]; below, 0; above, the value at the upper end; NaN of NaN.
// Cody-Waite reduction, then a degree-6 polynomial (minimax coefficients of Cephes' expf).
inline V16 exp(V16 x) {
    const V16 lowest = splat(-87.33654f);
    const V16 clamped = min(splat(88.37626f), max(lowest, x));
    const V16 magic = splat(12582912.0f);
    const V16 n = fma(clamped, splat(1.44269504f), magic) - magic;
    V16 r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    V16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return select_less(x, lowest, splat(0.0f), p * power_of_two(n));
}

// tanh(x) within 4 ulp; NaN of NaN. Small x have an odd polynomial (coefficients of Cephes' tanhf),
// the others 1 - 2 / (1 + exp(2x)).
inline V16 tanh(V16 x) {
    const V16 z = x * x;
    V16 p = splat(-5.70498872745e-3f);
    p = fma(p, z, splat(2.06390887954e-2f));
    p = fma(p, z, splat(-5.37397155531e-2f));
    p = fma(p, z, splat(1.33314422036e-1f));
    p = fma(p, z, splat(-3.33332819422e-1f));
    const V16 rest = splat(1.0f) - splat(2.0f) / (splat(1.0f) + exp(x + x));
    return select_less(abs(x), splat(0.625f), fma(p * z, x, x), rest);
}

// 2**x within 2 ulp for x <= 0; below -126.5, 0; NaN of NaN. Degree 5
// with constant term 1, so that 2**0 is 1: the coefficients that make the largest relative error on
// [-0.5, 0.5] least, 9.1e-8.
inline V16 exp2_of_at_most_0(V16 x) {
    const V16 clamped = max(splat(-127.0f), x);
    const V16 sum = clamped + splat(kExponentMagic);
    const V16 f = clamped - (sum - splat(kExponentMagic));
    V16 p = splat(1.3264727e-3f);
    p = fma(p, f, splat(9.6715130e-3f));
    p = fma(p, f, splat(5.5507336e-2f));
    p = fma(p, f, splat(2.4022242e-1f));
    p = fma(p, f, splat(6.9314700e-1f));
    p = fma(p, f, splat(1.0f));
    return p * low_bits_to_exponent(sum);
}

}  // namespace
