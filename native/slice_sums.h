// Sums of slices in registers, and what is multiplied and added there. The lanes of a vector are
// rows of one token. At the level i8mm they are two rows of two tokens, because smmla multiplies
// these.
#pragma once

#include <cstring>

#include "slice_layout.h"

namespace {

#if !defined(HEDDLE_ISA_NEON)

// Stores the codes of two groups of columns.
inline void store_groups(uint8_t* p, Codes first, Codes second) {
    store_codes(p, first);
    store_codes(p + kVector, second);
}
// Stores a scale or minimum of each row, as `load_numbers` reads them.
inline void store_numbers(uint8_t* p, Rows rows) { store_rows(p, rows); }

using SliceDots = Codes;  // sums of products, integers
using SliceSums = Rows;   // the same in float32
inline SliceSums load_numbers(const uint8_t* p) { return load_rows(p); }
// The sums of `tokens` tokens in memory: kVector bytes each.
inline SliceSums load_sums(const uint8_t* p, int) { return load_rows(p); }
inline void store_sums(uint8_t* p, SliceSums sums, int) { store_rows(p, sums); }
// A number of each token, as `fma` multiplies it.
inline float of_tokens(const float* numbers, int) { return *numbers; }

// Codes of columns that are multiplied together, in groups of four columns.
constexpr int kStepGroups = 1;
using SliceStep = Codes;
inline SliceStep load_step(const uint8_t* p) { return load_codes(p); }
#if !defined(HEDDLE_TILES)
inline void add_step(SliceDots& dot, SliceStep codes, const uint8_t* x, int) {
    int32_t four;
    std::memcpy(&four, x, 4);
    dot = add_products(dot, codes, all_lanes(four));
}
#endif

#else

constexpr int kVectors = 2 * kSumTokens;
struct SliceDots {
    int32x4_t r[kVectors];
};
struct SliceSums {
    float32x4_t r[kVectors];
};

inline SliceSums to_floats(const SliceDots& dot) {
    SliceSums sums;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sums.r[i] = vcvtq_f32_s32(dot.r[i]);
    return sums;
}
inline SliceSums multiply(const SliceSums& a, const SliceSums& b) {
    SliceSums product;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) product.r[i] = vmulq_f32(a.r[i], b.r[i]);
    return product;
}
inline SliceSums load_numbers(const uint8_t* p) {
    SliceSums numbers;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
        numbers.r[i] = vld1q_f32(reinterpret_cast<const float*>(p) + 4 * i);
    }
    return numbers;
}

constexpr int kStepGroups = 2;
struct SliceStep {
    int8x16_t r[4];
};
inline SliceStep load_step(const uint8_t* p) {
    SliceStep codes;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) codes.r[i] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * i));
    return codes;
}

#if !defined(HEDDLE_ISA_I8MM)

inline void store_groups(uint8_t* p, const Codes& first, const Codes& second) {
    for (int i = 0; i < 2; ++i) {
        vst1q_s8(reinterpret_cast<int8_t*>(p) + 16 * i, first.r[i]);
        vst1q_s8(reinterpret_cast<int8_t*>(p) + 32 + 16 * i, second.r[i]);
    }
}
inline void store_numbers(uint8_t* p, const Rows& rows) {
    for (int i = 0; i < 2; ++i) vst1q_f32(reinterpret_cast<float*>(p) + 4 * i, rows.r[i]);
}
inline SliceSums load_sums(const uint8_t* p, int) { return load_numbers(p); }
inline void store_sums(uint8_t* p, const SliceSums& sums, int) {
    store_numbers(p, {{sums.r[0], sums.r[1]}});
}
inline float of_tokens(const float* numbers, int) { return *numbers; }
inline SliceSums fma(const SliceSums& a, float b, SliceSums c) {
    for (int i = 0; i < kVectors; ++i) c.r[i] = vfmaq_n_f32(c.r[i], a.r[i], b);
    return c;
}
inline void add_step(SliceDots& dot, const SliceStep& codes, const uint8_t* x, int) {
    const int8x8_t eight = vld1_s8(reinterpret_cast<const int8_t*>(x));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        dot.r[i] = vdotq_lane_s32(dot.r[i], codes.r[i], eight, 0);
        dot.r[i] = vdotq_lane_s32(dot.r[i], codes.r[2 + i], eight, 1);
    }
}

#else

// A vector of sums has a row of both tokens, then the next row of both. A vector of codes has eight
// columns of a row, then of the next row. A token without a second one is its own second token.
inline void store_groups(uint8_t* p, const Codes& first, const Codes& second) {
    for (int i = 0; i < 2; ++i) {
        const int32x4_t a = vreinterpretq_s32_s8(first.r[i]);
        const int32x4_t b = vreinterpretq_s32_s8(second.r[i]);
        vst1q_s8(reinterpret_cast<int8_t*>(p) + 32 * i, vreinterpretq_s8_s32(vzip1q_s32(a, b)));
        vst1q_s8(reinterpret_cast<int8_t*>(p) + 32 * i + 16,
                 vreinterpretq_s8_s32(vzip2q_s32(a, b)));
    }
}
inline SliceSums side_by_side(const Rows& first, const Rows& second) {
    return {{vzip1q_f32(first.r[0], second.r[0]), vzip2q_f32(first.r[0], second.r[0]),
             vzip1q_f32(first.r[1], second.r[1]), vzip2q_f32(first.r[1], second.r[1])}};
}
inline Rows load_rows(const uint8_t* p) {
    const float* at = reinterpret_cast<const float*>(p);
    return {{vld1q_f32(at), vld1q_f32(at + 4)}};
}
inline void store_numbers(uint8_t* p, const Rows& rows) {
    const SliceSums numbers = side_by_side(rows, rows);
    for (int i = 0; i < 4; ++i) vst1q_f32(reinterpret_cast<float*>(p) + 4 * i, numbers.r[i]);
}
inline SliceSums load_sums(const uint8_t* p, int tokens) {
    return side_by_side(load_rows(p), load_rows(p + (tokens - 1) * kVector));
}
inline void store_sums(uint8_t* p, const SliceSums& sums, int tokens) {
    float* at = reinterpret_cast<float*>(p);
    for (int i = 0; i < 2; ++i) {
        vst1q_f32(at + 4 * i, vuzp1q_f32(sums.r[2 * i], sums.r[2 * i + 1]));
        if (tokens == 1) continue;
        vst1q_f32(at + 8 + 4 * i, vuzp2q_f32(sums.r[2 * i], sums.r[2 * i + 1]));
    }
}
inline float32x4_t of_tokens(const float* numbers, int tokens) {
    if (tokens == 1) return vdupq_n_f32(*numbers);
    double both;
    std::memcpy(&both, numbers, 8);
    return vreinterpretq_f32_f64(vdupq_n_f64(both));
}
inline SliceSums fma(const SliceSums& a, float32x4_t b, SliceSums c) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) c.r[i] = vfmaq_f32(c.r[i], a.r[i], b);
    return c;
}
inline void add_step(SliceDots& dot, const SliceStep& codes, const uint8_t* x, int tokens) {
    const int8_t* run = reinterpret_cast<const int8_t*>(x);
    const int8x16_t both = tokens == 2 ? vld1q_s8(run) : vcombine_s8(vld1_s8(run), vld1_s8(run));
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) dot.r[i] = vmmlaq_s32(dot.r[i], codes.r[i], both);
}

#endif
#endif

}  // namespace
