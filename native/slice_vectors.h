// Products of slices by dot products of vectors.
#pragma once

#include "slice_sums.h"

namespace {

constexpr int kSlicesTogether = 1;  // that a tile is multiplied with before the next tile

// One part of a slice's block. `of_part` has its scales, `codes` its groups; `x` has the complete
// block of activations.
template <class S, int T>
inline void add_slice_part(const uint8_t* of_part, const uint8_t* codes, int part, const uint8_t* x,
                           const PackedScales<T>& scales, SliceSums (&acc)[sums_of(T)]) {
    constexpr int kSums = sums_of(T), kPartGroups = kGroups / S::kParts;
    SliceDots dot[kSums] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
        if constexpr (S::kFloats) {
            const int32_t* start = S::kParts == 1 ? scales.start : scales.half_start[part];
            dot[i] = all_lanes(S::kMinimum ? kZeroBits : start[i]);
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < kPartGroups; g += kStepGroups) {
        const SliceStep step = load_step(codes + g * kVector);
#pragma GCC unroll 16
        for (int i = 0; i < kSums; ++i) {
            const int tokens = tokens_of(T, i);
            const uint8_t* of_sum = x + i * kSumTokens * kBlock;
            add_step(dot[i], step, of_sum + (part * kPartGroups + g) * 4 * tokens, tokens);
        }
    }
    const float* s = S::kParts == 1 ? scales.s : scales.half_s[part];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
        const int t = i * kSumTokens, tokens = tokens_of(T, i);
        SliceSums scaled;
        if constexpr (S::kFloats) {
            scaled = scaled_sum(dot[i], load_numbers(of_part), load_numbers(of_part + kNumber));
        } else {
            scaled = multiply(to_floats(dot[i]), load_numbers(of_part));
        }
        acc[i] = fma(scaled, of_tokens(scales.d + t, tokens), acc[i]);
        if constexpr (S::kMinimum) {
            const SliceSums minimum = load_numbers(of_part + S::kMinimumAt);
            acc[i] = fma(minimum, of_tokens(s + t, tokens), acc[i]);
        }
    }
}

// Adds a slice's products with T tokens to their sums (T, kPanelRows).
template <class S, int T>
void add_tile(const uint8_t* slice, int blocks, const uint8_t* x, uint8_t* sums,
              SlicesAhead& ahead) {
    constexpr int kSums = sums_of(T), kPart = S::kNumbers, kGroup = kGroups / S::kParts;
    SliceSums acc[kSums];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
        acc[i] = load_sums(sums + i * kNumber, tokens_of(T, i));
    }
    for (int b = 0; b < blocks; ++b) {
        const uint8_t* codes = slice + S::kParts * kPart;
        const auto& scales = *reinterpret_cast<const PackedScales<T>*>(x + T * kBlock);
        ahead.step();
#pragma GCC unroll 2
        for (int part = 0; part < S::kParts; ++part) {
            add_slice_part<S>(slice + part * kPart, codes + part * kGroup * kVector, part, x,
                              scales, acc);
        }
        slice = codes + kGroups * kVector;
        x += kRecord * T;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
        store_sums(sums + i * kNumber, acc[i], tokens_of(T, i));
    }
}

template <class S, int T = kSliceTile>
void add_tokens(const uint8_t* slice, int blocks, const Tile& tile, uint8_t* sums,
                SlicesAhead& ahead) {
    if constexpr (T > 0) {
        if (tile.tokens != T) return add_tokens<S, T - 1>(slice, blocks, tile, sums, ahead);
        add_tile<S, T>(slice, blocks, tile.x, sums + tile.sums, ahead);
    }
}

// Adds the products of slices with a run of tiles to the run's sums.
template <class S>
void multiply_slices(const SliceRun& run) {
    SlicesAhead ahead = run.ahead;
    ahead.spread(int64_t{run.blocks} * (run.last - run.first) * run.panels);
    for (int i = run.first; i < run.last; ++i) {
        const Tile tile = run.tile(i);
        for (int panel = 0; panel < run.panels; ++panel) {
            add_tokens<S>(run.slice(panel), run.blocks, tile, run.sums_of(panel), ahead);
        }
    }
}

}  // namespace
