// Matmuls of many tokens. A quantised panel is unpacked once for all of them, a slice of columns at
// a time, into bytes and float32 scales. Activations are packed in the order in which a tile reads
// them. The sums of some panels wait in the scratch for the next slice. The arithmetic of each sum,
// and its order, are those of matmul_*.h.
//
// A level's matmul_*.h defines Codes and Rows (a vector of a panel's rows), and their few
// operations. slice_vectors.h multiplies slices by dot products of vectors, slice_tiles.h by AMX.
// slice_sums.h has the operations that differ where a vector has the sums of two tokens.
#pragma once

#include <cstring>

#include "kernels.h"
#include "slice_layout.h"
#include "slice_sums.h"
#if defined(HEDDLE_TILES)
#include "slice_tiles.h"
#else
#include "slice_vectors.h"
#endif

namespace {

using namespace heddle;

template <Format F, int G>
inline Codes slice_codes(const uint8_t* codes) {
    constexpr int kLeft = offset_left(layout_of(F));
    constexpr int kMore = kLeft == 0 ? 0 : kSliceOffset - kLeft;
    const Codes code = whole_codes<F, G>(codes);
    return kMore == 0 ? code : add_bytes(code, kMore);
}

template <Format F, int G = 0>
inline void unpack_groups(const uint8_t* codes, uint8_t* out) {
    if constexpr (G < kGroups) {
        store_groups(out + G * kVector, slice_codes<F, G>(codes), slice_codes<F, G + 1>(codes));
        unpack_groups<F, G + 2>(codes, out);
    }
}

// Unpacks some columns of a panel, whole super-blocks.
template <Format F>
inline void unpack_slice(const uint8_t* panel, int columns, uint8_t* out) {
    constexpr Layout L = layout_of(F);
    using S = ShapeOf<F>;
    for (int at = 0; at < columns; at += L.blocks * kBlock) {
        const auto shared = shared_of<F>(panel);
        panel += L.header() * kPanelRows;
        for (int b = 0; b < L.blocks; ++b) {
            for (int i = 0; i < L.parts; ++i) {
                const auto part = part_scale<F>(panel, shared, i);
                store_numbers(out, part.scale);
                if constexpr (S::kFloats) store_numbers(out + kNumber, scaled_zero(part.scale));
                if constexpr (S::kMinimum) store_numbers(out + S::kMinimumAt, part.minimum);
                out += S::kNumbers;
            }
            unpack_groups<F>(panel + L.scales() * kPanelRows, out);
            panel += L.block() * kPanelRows;
            out += kGroups * kVector;
        }
    }
}

// Copies a token's codes of a block to their place among those of a tile of T tokens.
template <int T>
inline void pack_codes(const int8_t* codes, int t, uint8_t* out) {
    const int sum = t / kSumTokens;
    out += sum * kSumTokens * kBlock + t % kSumTokens * kRunColumns;
    for (int k = 0; k < kBlock; k += kRunColumns) {
        std::memcpy(out + k * tokens_of(T, sum), codes + k, kRunColumns);
    }
}

template <int T>
inline void pack_block(const QuantisedRows& rows, int64_t token, int64_t block, uint8_t* out) {
    PackedScales<T> scales;
    for (int t = 0; t < T; ++t) {
        pack_codes<T>(rows.q + (token + t) * rows.columns + block * kBlock, t, out);
        const BlockScale& scale = rows.scales[(token + t) * (rows.columns / kBlock) + block];
        scales.d[t] = scale.d;
        scales.s[t] = scale.s;
        for (int half = 0; half < 2; ++half) scales.half_s[half][t] = scale.half_s[half];
#if !defined(HEDDLE_SIGNED_SLICES)
        scales.start[t] = scale.start;
        for (int half = 0; half < 2; ++half) scales.half_start[half][t] = scale.half_start[half];
#endif
    }
    std::memcpy(out + T * kBlock, &scales, sizeof scales);
}

template <int T = kSliceTile>
void pack_tile(const QuantisedRows& rows, int64_t blocks, int64_t token, int tokens, uint8_t* out) {
    if constexpr (T > 0) {
        if (tokens != T) return pack_tile<T - 1>(rows, blocks, token, tokens, out);
        for (int64_t block = 0; block < blocks; ++block) {
            pack_block<T>(rows, token, block, out + block * kRecord * T);
        }
    }
}

void pack(const QuantisedRows& rows, int columns, int tokens, int tile, uint8_t* out) {
    const int tiles = tiles_of(tokens, kSliceTile);
    const int first = tile_begin(tokens, tiles, tile), end = tile_begin(tokens, tiles, tile + 1);
    const int64_t blocks = columns / kBlock;
    pack_tile(rows, blocks, first, end - first, out + first * blocks * kRecord);
}

// A run of tiles and a run of panels. All panels of one slice are multiplied before the next slice,
// so that the slice's activations stay in the second-level cache.
template <Format F>
void multiply_panels(const MatmulArgs& a, int first_tile, int last_tile, int from, int to) {
    constexpr Layout L = layout_of(F);
    static_assert(L.minimum == (L.offset == 0), "a slice has minima, or codes with an offset");
    const int tiles = tiles_of(a.tokens, kSliceTile);
    const int first = tile_begin(a.tokens, tiles, first_tile);
    const int last = tile_begin(a.tokens, tiles, last_tile);
    // Two slices and the activations of few tiles would not stay in the first-level cache.
    const int together = last_tile - first_tile > 2 ? kSlicesTogether : 1;
    uint8_t* const sums = a.scratch + kSlices * kSliceBytes;
    const int64_t panel_sums = int64_t{last - first} * kVector;
    std::memset(sums, 0, static_cast<size_t>((to - from) * panel_sums));
    const auto bytes = [&](int columns) {  // of a panel
        return columns / L.columns() * int64_t{L.super_block()} * kPanelRows;
    };
    const auto codes = [&](int panel, int column) {
        return a.w->panels + panel * a.w->panel_bytes + bytes(column);
    };
    for (int column = 0; column < a.w->columns; column += kSliceColumns) {
        const int left = a.w->columns - column;
        const int columns = left < kSliceColumns ? left : kSliceColumns;
        const int64_t block = a.packed.first_block + column / kBlock;
        for (int panel = from; panel < to; panel += together) {
            const int panels = to - panel < together ? to - panel : together;
            for (int i = 0; i < panels; ++i) {
                unpack_slice<F>(codes(panel + i, column), columns, a.scratch + i * kSliceBytes);
            }
            const uint8_t* next = panel + panels < to ? codes(panel + panels, column)
                                  : columns < left    ? codes(from, column + columns)
                                                      : codes(to, 0);  // of the next run
            multiply_slices<ShapeOf<F>>({a,
                                         a.scratch,
                                         panels,
                                         columns / kBlock,
                                         first_tile,
                                         last_tile,
                                         first,
                                         block,
                                         sums + (panel - from) * panel_sums,
                                         panel_sums,
                                         {next, bytes(columns), panels, a.w->panel_bytes}});
        }
    }
    for (int token = first; token < last; ++token) {
        for (int panel = from; panel < to; ++panel) {
            const uint8_t* of = sums + (panel - from) * panel_sums + (token - first) * kVector;
            write_sums(a, panel, token, reinterpret_cast<const float*>(of));
        }
    }
}

template <Format F>
void matmul_slices(const MatmulArgs& a) {
    constexpr int kTiles = kTokenBlock / kSliceTile;
    const int tiles = tiles_of(a.tokens, kSliceTile);
    for (int tile = 0; tile < tiles; tile += kTiles) {
        const int last_tile = tile + kTiles < tiles ? tile + kTiles : tiles;
        for (int panel = a.first_panel; panel < a.last_panel; panel += kSlicePanels) {
            const int last = panel + kSlicePanels;
            multiply_panels<F>(a, tile, last_tile, panel,
                               last < a.last_panel ? last : a.last_panel);
        }
    }
}

}  // namespace
