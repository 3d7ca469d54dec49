// Products of slices by dot products of vectors: bytes without a sign by bytes with one.
#pragma once

#include <cstring>

#include "slice_layout.h"

namespace {

constexpr int kSliceOffset = kByteOffset;
constexpr int kSlicesTogether = 1;  // that a tile is multiplied with before the next tile

// One part of a slice's block. `of_part` has its scales, `codes` and `x` its groups.
template <class S, int T>
inline void add_slice_part(const uint8_t* of_part, const uint8_t* codes, int part, const uint8_t* x,
                           const PackedScales<T>& scales, Rows (&acc)[T]) {
    Codes dot[T];
    const int32_t* start = S::kParts == 1 ? scales.start : scales.half_start[part];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) dot[t] = all_lanes(S::kMinimum ? kZeroBits : start[t]);
#pragma GCC unroll 8
    for (int g = 0; g < kGroups / S::kParts; ++g) {
        const Codes code = load_codes(codes + g * kVector);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            int32_t four;
            std::memcpy(&four, x + t * kBlock + g * 4, 4);
            dot[t] = add_products(dot[t], code, all_lanes(four));
        }
    }
    const Rows factor = load_rows(of_part), zero = load_rows(of_part + kVector);
    const float* s = S::kParts == 1 ? scales.s : scales.half_s[part];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        acc[t] = fma(scaled_sum(dot[t], factor, zero), scales.d[t], acc[t]);
        if constexpr (S::kMinimum) acc[t] = fma(load_rows(of_part + 2 * kVector), s[t], acc[t]);
    }
}

// Adds a slice's products with T tokens to their sums (T, kPanelRows).
template <class S, int T>
void add_tile(const uint8_t* slice, int blocks, const uint8_t* x, uint8_t* sums) {
    constexpr int kPart = S::kNumbers, kGroup = kGroups / S::kParts;
    Rows acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) acc[t] = load_rows(sums + t * kVector);
    for (int b = 0; b < blocks; ++b) {
        const uint8_t* codes = slice + S::kParts * kPart;
        const auto& scales = *reinterpret_cast<const PackedScales<T>*>(x + T * kBlock);
#pragma GCC unroll 2
        for (int part = 0; part < S::kParts; ++part) {
            add_slice_part<S>(slice + part * kPart, codes + part * kGroup * kVector, part,
                              x + part * kGroup * 4, scales, acc);
        }
        slice = codes + kGroups * kVector;
        x += kRecord * T;
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) store_rows(sums + t * kVector, acc[t]);
}

template <class S, int T = kSliceTile>
void add_tokens(const uint8_t* slice, int blocks, const Tile& tile, uint8_t* sums) {
    if constexpr (T > 0) {
        if (tile.tokens != T) return add_tokens<S, T - 1>(slice, blocks, tile, sums);
        add_tile<S, T>(slice, blocks, tile.x, sums + tile.sums);
    }
}

// Adds the products of slices with a run of tiles to the run's sums.
template <class S>
void multiply_slices(const SliceRun& run) {
    for (int i = run.first; i < run.last; ++i) {
        const Tile tile = run.tile(i);
        for (int panel = 0; panel < run.panels; ++panel) {
            add_tokens<S>(run.slice(panel), run.blocks, tile, run.sums_of(panel));
        }
    }
}

}  // namespace
