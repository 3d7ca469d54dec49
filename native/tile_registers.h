// The tile registers of AMX, as constants of templates, and their emulation in C++
// (HEDDLE_EMULATES_TILES), with which tests run where no processor has them.
//
// Eight registers hold up to sixteen rows of 64 bytes. A product adds to sums (tokens, rows of the
// matrix) in int32: of each token four activations at a time, by four columns of all rows.
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(HEDDLE_EMULATES_TILES)
#include <immintrin.h>
#endif

namespace {

constexpr int kTileRegisters = 8, kTileRows = 16, kTileBytes = 64;

// Rows and bytes of a row of each register, as the processor reads them (Intel's manual, volume 1,
// section 18.2).
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

#if defined(HEDDLE_EMULATES_TILES)

struct Tiles {
    TileShapes shapes;
    uint8_t data[kTileRegisters][kTileRows][kTileBytes];
};
thread_local Tiles tiles;

inline void shape_tiles(const TileShapes& shapes) {
    tiles.shapes = shapes;
    std::memset(tiles.data, 0, sizeof tiles.data);
}
inline void release_tiles() { tiles.shapes = {}; }

template <int R>
inline void load_tile(const void* from, int64_t stride) {
    for (int row = 0; row < tiles.shapes.rows[R]; ++row) {
        std::memcpy(tiles.data[R][row], static_cast<const uint8_t*>(from) + row * stride,
                    tiles.shapes.bytes[R]);
    }
}
template <int R>
inline void store_tile(void* to, int64_t stride) {
    for (int row = 0; row < tiles.shapes.rows[R]; ++row) {
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles.data[R][row],
                    tiles.shapes.bytes[R]);
    }
}
template <int R>
inline void zero_tile() {
    std::memset(tiles.data[R], 0, sizeof tiles.data[R]);
}
template <int Sums, int Activations, int Codes>
inline void multiply_tiles() {
    const int groups = tiles.shapes.rows[Codes], rows = tiles.shapes.bytes[Sums] / 4;
    for (int token = 0; token < tiles.shapes.rows[Sums]; ++token) {
        for (int row = 0; row < rows; ++row) {
            int32_t sum;
            std::memcpy(&sum, &tiles.data[Sums][token][row * 4], 4);
            for (int k = 0; k < groups * 4; ++k) {
                const auto x = static_cast<int8_t>(tiles.data[Activations][token][k]);
                sum += x * static_cast<int8_t>(tiles.data[Codes][k / 4][row * 4 + k % 4]);
            }
            std::memcpy(&tiles.data[Sums][token][row * 4], &sum, 4);
        }
    }
}

#else

inline void shape_tiles(const TileShapes& shapes) {
    asm volatile("" ::"r"(&shapes) : "memory");  // GCC's intrinsic names the first 8 bytes only
    _tile_loadconfig(&shapes);
}
inline void release_tiles() { _tile_release(); }

// The intrinsics take numbers of registers as literals only.
template <int R>
void load_tile(const void* from, int64_t stride);
template <int R>
void store_tile(void* to, int64_t stride);
template <int R>
void zero_tile();
template <int Sums, int Activations, int Codes>
void multiply_tiles();

#define HEDDLE_TILE(R)                                           \
    template <>                                                  \
    inline void load_tile<R>(const void* from, int64_t stride) { \
        _tile_loadd(R, from, stride);                            \
    }                                                            \
    template <>                                                  \
    inline void store_tile<R>(void* to, int64_t stride) {        \
        _tile_stored(R, to, stride);                             \
    }                                                            \
    template <>                                                  \
    inline void zero_tile<R>() {                                 \
        _tile_zero(R);                                           \
    }
HEDDLE_TILE(0)
HEDDLE_TILE(1)
HEDDLE_TILE(2)
HEDDLE_TILE(3)
HEDDLE_TILE(4)
HEDDLE_TILE(5)
HEDDLE_TILE(6)
HEDDLE_TILE(7)
#undef HEDDLE_TILE

#define HEDDLE_TILE_PRODUCT(S, A, C)        \
    template <>                             \
    inline void multiply_tiles<S, A, C>() { \
        _tile_dpbssd(S, A, C);              \
    }
HEDDLE_TILE_PRODUCT(0, 4, 6)
HEDDLE_TILE_PRODUCT(1, 5, 7)
HEDDLE_TILE_PRODUCT(2, 4, 6)
HEDDLE_TILE_PRODUCT(3, 5, 7)
#undef HEDDLE_TILE_PRODUCT

#endif

}  // namespace
