// Measures the multiplication of a level's matmuls on registers only, with enough independent sums
// to hide its latency. No tile can exceed this rate.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HEDDLE_ISA_AVX512) || defined(HEDDLE_ISA_AVX2)
#include <immintrin.h>
#elif defined(HEDDLE_ISA_NEON)
#include <arm_neon.h>
#endif

namespace {

// Hides the register's value from the compiler, which would hoist a constant computation.
#if defined(HEDDLE_ISA_AVX512)

using Register = __m512i;
constexpr const char* kMultiplication = "vpdpbusd, 512 bits";
constexpr int kProducts = 64;  // of one multiplication
inline void forget(Register& r) { asm volatile("" : "+v"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) {
    return _mm512_dpbusd_epi32(sum, codes, x);
}

#elif defined(HEDDLE_ISA_AVXVNNI)

using Register = __m256i;
constexpr const char* kMultiplication = "vpdpbusd, 256 bits";
constexpr int kProducts = 32;
inline void forget(Register& r) { asm volatile("" : "+x"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) {
    return _mm256_dpbusd_avx_epi32(sum, codes, x);
}

#elif defined(HEDDLE_ISA_AVX2)

using Register = __m256i;
constexpr const char* kMultiplication = "vpmaddubsw and vpaddw, 256 bits";
constexpr int kProducts = 32;
inline void forget(Register& r) { asm volatile("" : "+x"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
}

#elif defined(HEDDLE_ISA_I8MM)

using Register = int8x16_t;
constexpr const char* kMultiplication = "smmla, 128 bits";
constexpr int kProducts = 32;
inline void forget(Register& r) { asm volatile("" : "+w"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) {
    return vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), codes, x));
}

#elif defined(HEDDLE_ISA_NEON)

using Register = int8x16_t;
constexpr const char* kMultiplication = "sdot, 128 bits";
constexpr int kProducts = 16;
inline void forget(Register& r) { asm volatile("" : "+w"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) {
    return vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(sum), codes, x));
}

#else

using Register = uint32_t;
constexpr const char* kMultiplication = "scalar multiplication";
constexpr int kProducts = 1;
inline void forget(Register& r) { asm volatile("" : "+r"(r)); }
inline Register multiply_add(Register sum, Register codes, Register x) { return sum + codes * x; }

#endif

constexpr int kSumsInFlight = kProducts == 1 ? 6 : 12;

// See Kernels::multiply_adds.
int64_t multiply_adds(int64_t rounds) {
    Register codes, x, sums[kSumsInFlight];
    std::memset(&codes, 3, sizeof codes);
    std::memset(&x, 5, sizeof x);
#pragma GCC unroll 12
    for (int i = 0; i < kSumsInFlight; ++i) sums[i] = x;
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < kSumsInFlight; ++i) {
            forget(codes);
            sums[i] = multiply_add(sums[i], codes, x);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < kSumsInFlight; ++i) forget(sums[i]);
    return rounds * kSumsInFlight * kProducts;
}

}  // namespace
