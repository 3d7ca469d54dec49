// How slices and packed activations lie in memory; see slices.h.
#pragma once

#include "kernels.h"
#include "tiles.h"

namespace {

using namespace heddle;

constexpr int kVector = kPanelRows * 4;  // bytes
constexpr int kPacksFrom = 24;           // tokens; with fewer, unpacking costs more than it saves

// A block of columns in a slice: for each part its scale, scaled_zero of it and, if the format has
// one, its minimum; then a byte for each code. kSliceOffset stands in for the format's offset, if
// it has one.
constexpr int part_bytes(bool minimum) { return (minimum ? 3 : 2) * kVector; }

// The properties of a format that the kernels of slices depend on.
template <int Parts, bool Minimum, bool Floats>
struct SliceShape {
    static constexpr int kParts = Parts;
    static constexpr bool kMinimum = Minimum;
    static constexpr bool kFloats = Floats;  // sums_are_floats
    static constexpr int kNumbers = part_bytes(Minimum);
    static constexpr int kBlockBytes = Parts * kNumbers + kGroups * kVector;
};
template <Format F>
using ShapeOf = SliceShape<layout_of(F).parts, layout_of(F).minimum, sums_are_floats(layout_of(F))>;

// The numbers of T tokens' scales in a packed block, after the codes.
template <int T>
struct PackedScales {
    float d[T], s[T], half_s[2][T];
#if !defined(HEDDLE_TILES)  // products of tiles begin at zero
    int32_t start[T], half_start[2][T];
#endif
};
constexpr int64_t kRecord = kBlock + sizeof(PackedScales<1>);  // bytes of a token's block
static_assert(kRecord <= kPackedBlock);

// A tile of tokens: its activations, and the offset of its sums in those of a panel, in bytes.
struct Tile {
    const uint8_t* x;
    int tokens;
    int64_t sums;
};

// Slices of some panels, all of the same columns, and the tiles [first, last) of tokens that they
// are multiplied with. `block` is the first block of activations. A tile is multiplied with all
// slices before the next tile, so that its activations stay in the first-level cache.
struct SliceRun {
    const MatmulArgs& a;
    const uint8_t* slices;  // kSliceBytes apart
    int panels, blocks;
    int first, last, first_token;
    int64_t block;
    uint8_t* sums;       // (tokens of the run, kPanelRows) of each panel, float32
    int64_t panel_sums;  // bytes of them

    const uint8_t* slice(int panel) const { return slices + panel * kSliceBytes; }
    uint8_t* sums_of(int panel) const { return sums + panel * panel_sums; }
    Tile tile(int number) const {
        const int tiles = tiles_of(a.tokens, kSliceTile);
        const int begin = tile_begin(a.tokens, tiles, number);
        const int tokens = tile_begin(a.tokens, tiles, number + 1) - begin;
        const int64_t records = begin * a.packed.blocks + block * tokens;
        return {a.packed.tiles + records * kRecord, tokens, int64_t{begin - first_token} * kVector};
    }
};

}  // namespace
