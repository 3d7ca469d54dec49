// Products of slices by AMX: the tokens of a tile by the rows of a panel, bytes with signs. Sums
// pass through memory, because no instruction moves a tile into vectors.
//
// While tiles are in use, floats of 512 bits are multiplied on one of two ports. The float
// operations of the sums (two or three for 16 rows, a token and a part of a block) therefore bound
// the rate, and everything else must overlap with them: products are made up to eight parts ahead,
// their instructions lie between those of the sums, and integers become floats by an addition,
// which has a port of its own.
#pragma once

#include "slice_layout.h"
#include "tile_registers.h"

namespace {

constexpr int kSlicesTogether = kSlices;  // that a tile is multiplied with before the next tile

// Shapes the thread's registers for blocks of `parts`: four for sums, two for activations, two for
// codes. A thread that keeps its tiles has 8 KiB more to save whenever it is put aside.
class ShapedTiles {
  public:
    explicit ShapedTiles(int parts) {
        TileShapes shapes;
        for (int i = 0; i < kTileRegisters; ++i) {
            shapes.rows[i] = static_cast<uint8_t>(i < 6 ? kSliceTile : kGroups / parts);
            shapes.bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? kBlock / parts : kVector);
        }
        shape_tiles(shapes);
    }
    ~ShapedTiles() { release_tiles(); }
    ShapedTiles(const ShapedTiles&) = delete;
    ShapedTiles& operator=(const ShapedTiles&) = delete;
};

// Products are made, stored and added in groups of four parts of blocks.
constexpr int kGroup = 4;
constexpr int kTileSums = kSliceTile * kPanelRows;

// Where a slice has the numbers and codes of part R of a group, in bytes.
template <class S>
constexpr int numbers_at(int R) {
    return R / S::kParts * S::kBlockBytes + R % S::kParts * S::kNumbers;
}
template <class S>
constexpr int codes_at(int R) {
    const int before = R % S::kParts * (kGroups / S::kParts) * kVector;
    return R / S::kParts * S::kBlockBytes + S::kParts * S::kNumbers + before;
}

// The work for one group: its products begin, the sums of the group before are stored, and those of
// the group before that are ready.
template <class S>
struct Group {
    const uint8_t *x, *codes;  // of its first part: activations, the slice
    int64_t block_bytes;       // of activations
    int begins;                // parts
    int32_t *stored, *ready;   // (kGroup, kTileSums)

    // Does a third of the work for part R. If the group has fewer parts, the products of the others
    // have no use. If the tile has fewer than 16 tokens, it also loads bytes behind the last token;
    // their sums have no use either.
    template <int R, int Third, bool Stores = true>
    [[gnu::always_inline]] void make() const {
        constexpr int kActivations = 4 + R % 2, kCodes = 6 + R % 2;
        if constexpr (Third == 0) {
            const int64_t at = R / S::kParts * block_bytes + R % S::kParts * (kBlock / S::kParts);
            load_tile<kActivations>(R < begins ? x + at : x, kBlock);
        } else if constexpr (Third == 1) {
            load_tile<kCodes>(R < begins ? codes + codes_at<S>(R) : codes, kVector);
        } else {
            if constexpr (Stores) store_tile<R>(stored + R * kTileSums, kVector);
            zero_tile<R>();
            multiply_tiles<R, kActivations, kCodes>();
        }
    }
    template <bool Stores, int R = 0>
    void make_all() const {
        if constexpr (R < kGroup) {
            make<R, 0>();
            make<R, 1>();
            make<R, 2, Stores>();
            make_all<Stores, R + 1>();
        }
    }
};

// Begins the products of a run, two groups before their sums are added.
template <class S>
class Products {
  public:
    explicit Products(const SliceRun& run) : run_(run), parts_(run.blocks * S::kParts) {
        enter(run.first);
        next().template make_all<false>();
        next().template make_all<true>();
    }

    Group<S> next() {
        const int left = number_ < run_.last ? parts_ - part_ : 0;
        const int block = part_ / S::kParts;
        Group<S> group = {};
        group.block_bytes = tile_.tokens * kRecord;
        group.x = tile_.x + block * group.block_bytes;
        group.codes = run_.slice(panel_) + block * S::kBlockBytes;
        group.begins = left < kGroup ? left : kGroup;
        group.stored = sums_[buffer_];
        group.ready = sums_[buffer_ ^ 1];
        buffer_ ^= 1;
        part_ += kGroup;
        if (part_ >= parts_) {
            part_ = 0;
            if (++panel_ == run_.panels) enter(number_ + 1);
        }
        return group;
    }

  private:
    // Begins with a tile of tokens, if the run has it.
    void enter(int number) {
        number_ = number;
        panel_ = 0;
        if (number < run_.last) tile_ = run_.tile(number);
    }

    alignas(64) int32_t sums_[2][kGroup * kTileSums];
    const SliceRun& run_;
    int parts_;  // of a slice
    // Of the next group.
    Tile tile_ = {};
    int number_ = 0, panel_ = 0, part_ = 0;
    int buffer_ = 0;
};

// Adds a part's sums of tokens [From, To). `half` is its number in the block.
template <class S, int From, int To, int T>
[[gnu::always_inline]] inline void add_sums(const int32_t* sums, const uint8_t* numbers,
                                            const PackedScales<T>& scales, int half,
                                            Rows (&acc)[T]) {
    const Rows factor = load_rows(numbers), zero = load_rows(numbers + kVector);
    const float* s = S::kParts == 1 ? scales.s : scales.half_s[half];
#pragma GCC unroll 16
    for (int t = From; t < To; ++t) {
        const Codes sum = load_codes(reinterpret_cast<const uint8_t*>(sums + t * kPanelRows));
        Rows scaled;
        if constexpr (S::kFloats) {
            scaled = scaled_sum(add_lanes(sum, all_lanes(kZeroBits)), factor, zero);
        } else {
            scaled = multiply(to_floats(sum), factor);
        }
        acc[t] = fma(scaled, scales.d[t], acc[t]);
        if constexpr (S::kMinimum) acc[t] = fma(load_rows(numbers + S::kMinimumAt), s[t], acc[t]);
        keep_here(acc[t]);
    }
}

// Adds the sums of part R if the tile has this part (`Here`). The group's own work for part R lies
// between these additions.
template <int R, bool Here, class S, int T>
[[gnu::always_inline]] inline void add_part(const Group<S>& group, const uint8_t* slice,
                                            const uint8_t* x, Rows (&acc)[T]) {
    constexpr int kHalf = R % S::kParts;
    constexpr int kSecond = T / 3, kThird = T * 2 / 3;
    const int32_t* sums = group.ready + R * kTileSums;
    const uint8_t* numbers = slice + numbers_at<S>(R);
    const auto& scales =
        *reinterpret_cast<const PackedScales<T>*>(x + R / S::kParts * (kRecord * T) + T * kBlock);
    group.template make<R, 0>();
    if constexpr (Here) add_sums<S, 0, kSecond>(sums, numbers, scales, kHalf, acc);
    group.template make<R, 1>();
    if constexpr (Here) add_sums<S, kSecond, kThird>(sums, numbers, scales, kHalf, acc);
    group.template make<R, 2>();
    if constexpr (Here) add_sums<S, kThird, T>(sums, numbers, scales, kHalf, acc);
}

template <int Parts, class S, int T>
[[gnu::always_inline]] inline void add_group(const Group<S>& group, const uint8_t* slice,
                                             const uint8_t* x, Rows (&acc)[T]) {
    add_part<0, 0 < Parts>(group, slice, x, acc);
    add_part<1, 1 < Parts>(group, slice, x, acc);
    add_part<2, 2 < Parts>(group, slice, x, acc);
    add_part<3, 3 < Parts>(group, slice, x, acc);
}

// Adds the products with a tile of T tokens to its sums.
template <class S, int T>
void add_tile(Products<S>& products, const uint8_t* slice, int blocks, const uint8_t* x,
              uint8_t* sums) {
    constexpr int kBlocks = kGroup / S::kParts;
    Rows acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) acc[t] = load_rows(sums + t * kVector);
    int left = blocks * S::kParts;
    for (; left >= kGroup; left -= kGroup) {
        add_group<kGroup>(products.next(), slice, x, acc);
        slice += kBlocks * S::kBlockBytes;
        x += kBlocks * kRecord * T;
    }
    if (left == 1) add_group<1>(products.next(), slice, x, acc);
    if (left == 2) add_group<2>(products.next(), slice, x, acc);
    if (left == 3) add_group<3>(products.next(), slice, x, acc);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) store_rows(sums + t * kVector, acc[t]);
}

template <class S, int T = kSliceTile>
void add_tokens(Products<S>& products, const uint8_t* slice, int blocks, const Tile& tile,
                uint8_t* sums) {
    if constexpr (T > 0) {
        if (tile.tokens != T) return add_tokens<S, T - 1>(products, slice, blocks, tile, sums);
        add_tile<S, T>(products, slice, blocks, tile.x, sums + tile.sums);
    }
}

// Adds the products of slices with a run of tiles to the run's sums.
template <class S>
void multiply_slices(const SliceRun& run) {
    asm volatile("" ::: "memory");  // the compiler does not know that loads of tiles read memory
    Products<S> products(run);
    for (int i = run.first; i < run.last; ++i) {
        const Tile tile = run.tile(i);
        for (int panel = 0; panel < run.panels; ++panel) {
            add_tokens<S>(products, run.slice(panel), run.blocks, tile, run.sums_of(panel));
        }
    }
}

}  // namespace
