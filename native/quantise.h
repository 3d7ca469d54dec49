// Int8 codes of 32 floats, the one rule by which activations and KV pages are quantised.
#pragma once

#include "simd.h"

namespace {

// Writes the codes round(x * 127 / max|x|), ties to even, of 32 values; returns max|x|. Where the
// quotient overflows (maxima below 3.8e-37) all codes are zero. Codes cannot represent an infinite
// value or NaN: then all codes are zero and NaN is returned, so that the scale poisons the block.
inline float quantise_block(V16 low, V16 high, int8_t* codes) {
    const float peak = peak_of(abs(low), abs(high));
    if (!(peak < __builtin_inff())) {
        std::memset(codes, 0, 32);
        return __builtin_nanf("");
    }
    const float steps = 127.0f / peak;
    const V16 inverse = splat(steps < __builtin_inff() ? steps : 0.0f);
    store_int8(codes, low * inverse);
    store_int8(codes + 16, high * inverse);
    return peak;
}
inline float quantise_block(const float* x, int8_t* codes) {
    return quantise_block(load(x), load(x + 16), codes);
}

}  // namespace
