// Products of slices by AMX: the tokens of a tile by the rows of a panel, bytes with signs. The
// integer sums of four blocks are in flight. They pass through memory, because no instruction moves
// a tile into vectors.
#pragma once

#include "slice_layout.h"
#include "tile_registers.h"

namespace {

constexpr int kSliceOffset = 0;

// Shapes the thread's registers: four for sums, two for activations, two for codes. A thread that
// keeps its tiles has 8 KiB more to save whenever it is put aside.
class ShapedTiles {
  public:
    ShapedTiles() {
        TileShapes shapes;
        for (int i = 0; i < kTileRegisters; ++i) {
            shapes.rows[i] = i < 6 ? kSliceTile : kGroups;
            shapes.bytes[i] = i == 4 || i == 5 ? kBlock : kVector;
        }
        shape_tiles(shapes);
    }
    ~ShapedTiles() { release_tiles(); }
    ShapedTiles(const ShapedTiles&) = delete;
    ShapedTiles& operator=(const ShapedTiles&) = delete;
};

// The blocks of a slice, and of T tokens' activations.
template <bool Minimum, int T>
struct SliceBlocks {
    static constexpr int kNumbers = part_bytes(Minimum);
    const uint8_t* slice;
    const uint8_t* x;

    const uint8_t* numbers(int block) const {
        return slice + block * (kNumbers + kGroups * kVector);
    }
    const uint8_t* codes(int block) const { return numbers(block) + kNumbers; }
    const uint8_t* activations(int block) const { return x + block * kPackedBlock * T; }
    const auto& scales(int block) const {
        return *reinterpret_cast<const PackedScales<T>*>(activations(block) + T * kBlock);
    }
};

// Begins the products of a block. Rows of activations past the T tokens are whatever follows.
template <int R, class Blocks>
inline void begin_block(const Blocks& of, int block) {
    constexpr int kActivations = 4 + R % 2, kCodes = 6 + R % 2;
    zero_tile<R>();
    load_tile<kActivations>(of.activations(block), kBlock);
    load_tile<kCodes>(of.codes(block), kVector);
    multiply_tiles<R, kActivations, kCodes>();
}

using BlockSums = int32_t[kSliceTile * kPanelRows];

// Adds a block's integer sums to those of all blocks.
template <bool Minimum, int T>
inline void add_sums(const SliceBlocks<Minimum, T>& of, int block, const BlockSums& sums,
                     Rows (&acc)[T]) {
    const Rows factor = load_rows(of.numbers(block));
    const PackedScales<T>& scales = of.scales(block);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const Codes sum = load_codes(reinterpret_cast<const uint8_t*>(sums + t * kPanelRows));
        acc[t] = fma(multiply(to_floats(sum), factor), scales.d[t], acc[t]);
        if constexpr (Minimum) {
            acc[t] = fma(load_rows(of.numbers(block) + 2 * kVector), scales.s[t], acc[t]);
        }
    }
}

// Multiplies four blocks, from `block` on.
template <bool Minimum, int T>
inline void add_four(const SliceBlocks<Minimum, T>& of, int block, BlockSums (&sums)[4],
                     Rows (&acc)[T]) {
    begin_block<0>(of, block);
    begin_block<1>(of, block + 1);
    begin_block<2>(of, block + 2);
    begin_block<3>(of, block + 3);
    store_tile<0>(sums[0], kVector);
    store_tile<1>(sums[1], kVector);
    add_sums(of, block, sums[0], acc);
    store_tile<2>(sums[2], kVector);
    add_sums(of, block + 1, sums[1], acc);
    store_tile<3>(sums[3], kVector);
    add_sums(of, block + 2, sums[2], acc);
    add_sums(of, block + 3, sums[3], acc);
}

// Adds a slice's products with T tokens to their sums (T, kPanelRows).
template <int Parts, bool Minimum, int T>
void slice_tile(const uint8_t* slice, int blocks, const uint8_t* x, uint8_t* sums) {
    static_assert(Parts == 1, "a product of tiles is of a complete block");
    const SliceBlocks<Minimum, T> of = {slice, x};
    alignas(64) BlockSums in_flight[4];
    Rows acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) acc[t] = load_rows(sums + t * kVector);
    asm volatile("" ::: "memory");  // the compiler does not know that loads of tiles read memory
    int block = 0;
    for (; block + 4 <= blocks; block += 4) add_four(of, block, in_flight, acc);
    for (; block < blocks; ++block) {
        begin_block<0>(of, block);
        store_tile<0>(in_flight[0], kVector);
        add_sums(of, block, in_flight[0], acc);
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) store_rows(sums + t * kVector, acc[t]);
}

}  // namespace
