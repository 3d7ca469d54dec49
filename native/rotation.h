// The rotation of heads whose keys and values are kept as codes of four bits.
//
// A product with a Hadamard matrix spreads a few large elements over all, so that sixteen levels
// serve a block better (Ashkboos et al. 2024, arXiv:2404.00456). Queries get the same rotation, so
// scores stay what they are; outputs get it once more, which undoes it.
#pragma once

#include "simd.h"

namespace {

// Pairs of lanes whose numbers differ in the bit Distance: a + b in the lower lane, a - b in the
// other one. Products with 1 and -1 are exact.
template <int Distance>
inline V16 butterfly(V16 a) {
    alignas(64) float signs[16];
    for (int i = 0; i < 16; ++i) signs[i] = (i & Distance) != 0 ? -1.0f : 1.0f;
    return fma(a, load(signs), swap_lanes<Distance>(a));
}

// Multiplies each block of x (head_dim,) by the symmetric orthonormal Hadamard matrix of its size:
// the largest power of two that divides head_dim, which is a multiple of 32. `out` may be x.
inline void rotate_head(const float* x, int head_dim, float* out) {
    const int size = head_dim & -head_dim;
    const V16 factor = splat(1.0f / __builtin_sqrtf(static_cast<float>(size)));
    for (int d = 0; d < head_dim; d += 16) {
        const V16 four = butterfly<2>(butterfly<1>(load(x + d) * factor));
        store(out + d, butterfly<8>(butterfly<4>(four)));
    }
    for (int distance = 16; distance < size; distance *= 2) {
        for (int d = 0; d < head_dim; d += 16) {
            if ((d & distance) != 0) continue;
            const V16 a = load(out + d), b = load(out + d + distance);
            store(out + d, a + b);
            store(out + d + distance, a - b);
        }
    }
}

}  // namespace
