// How slices and packed activations lie in memory; see slices.h.
#pragma once

#include "kernels.h"
#include "tiles.h"

namespace {

using namespace heddle;

constexpr int kVector = kPanelRows * 4;  // bytes
constexpr int kPacksFrom = 24;           // tokens; with fewer, unpacking costs more than it saves

// Products of tiles (AMX) and of NEON multiply bytes with signs, and begin at zero. Those of other
// levels multiply codes without a sign, and may begin with kZeroBits.
#if defined(HEDDLE_TILES) || defined(HEDDLE_ISA_NEON)
#define HEDDLE_SIGNED_SLICES
constexpr int kSliceOffset = 0;
#else
constexpr int kSliceOffset = kByteOffset;
#endif
#if defined(HEDDLE_ISA_NEON)
// NEON's fused operation overwrites its addend. So a sum that is read as a float needs a copy of
// scaled_zero first, and this copy takes as many instructions as a conversion.
constexpr bool kConvertsSums = true;
#else
constexpr bool kConvertsSums = false;
#endif

// Tokens whose sums lie side by side in a vector. In packed activations, runs of columns of these
// tokens alternate.
#if defined(HEDDLE_ISA_I8MM)
constexpr int kSumTokens = 2, kRunColumns = 8;
#else
constexpr int kSumTokens = 1, kRunColumns = kBlock;
#endif
constexpr int kNumber = kSumTokens * kVector;  // bytes of a part's scale or minimum for all rows

constexpr int sums_of(int tokens) { return (tokens + kSumTokens - 1) / kSumTokens; }
// Tokens of a tile's sum `i`: the last one may have fewer.
constexpr int tokens_of(int tokens, int i) {
    const int left = tokens - i * kSumTokens;
    return left < kSumTokens ? left : kSumTokens;
}

// The properties of a format that the kernels of slices depend on, and a block of columns in a
// slice: for each part its scale, scaled_zero of it if sums are read as floats, and its minimum if
// the format has one; then a byte for each code. kSliceOffset stands in for the format's offset, if
// it has one.
template <int Parts, bool Minimum, bool Floats>
struct SliceShape {
    static constexpr int kParts = Parts;
    static constexpr bool kMinimum = Minimum;
    static constexpr bool kFloats = Floats;  // whether sums are read as floats (kernels.h)
    static constexpr int kMinimumAt = (Floats ? 2 : 1) * kNumber;
    static constexpr int kNumbers = kMinimumAt + (Minimum ? kNumber : 0);
    static constexpr int kBlockBytes = Parts * kNumbers + kGroups * kVector;
    static_assert(kSliceColumns / kBlock * kBlockBytes <= kSliceBytes);
};
template <Format F>
using ShapeOf = SliceShape<layout_of(F).parts, layout_of(F).minimum,
                           !kConvertsSums && sums_are_floats(layout_of(F))>;

// The numbers of T tokens' scales in a packed block, after the codes.
template <int T>
struct PackedScales {
    float d[T], s[T], half_s[2][T];
#if !defined(HEDDLE_SIGNED_SLICES)
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

// Asks for the bytes of the next slices while others are multiplied. The reads are spread over the
// blocks of all tiles, because a core has few reads under way at a time: asked for at once, they
// take as long as reads that nothing asked for. 32 tokens times matrices in memory are 1.05 (Q4_K)
// to 1.14 (Q8_0) times as fast at AVX-512 and AVX-VNNI; 256 tokens take the same time. With AMX
// tiles Q8_0 gains a tenth, but Q4_K loses as much in some runs, so they do not ask.
class SlicesAhead {
  public:
    // `bytes` of each of `panels`, which begin `stride` bytes apart.
    SlicesAhead(const uint8_t* first, int64_t bytes, int panels, int64_t stride)
        : at_(first), bytes_(bytes), in_panel_(bytes), skip_(stride - bytes), panels_(panels) {}

    void spread(int64_t steps) {
        const int64_t lines = panels_ * ((bytes_ + kLine - 1) / kLine);
        lines_ = static_cast<int>((lines + steps - 1) / steps);
    }
    void step() {
        for (int i = 0; i < lines_ && panels_ > 0; ++i) {
            __builtin_prefetch(at_);
            at_ += kLine;
            in_panel_ -= kLine;
            if (in_panel_ > 0) continue;
            at_ += in_panel_ + skip_;
            in_panel_ = bytes_;
            --panels_;
        }
    }

  private:
    static constexpr int64_t kLine = 64;
    const uint8_t* at_;
    int64_t bytes_, in_panel_, skip_;
    int panels_, lines_ = 0;  // of a step
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
    SlicesAhead ahead;

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
