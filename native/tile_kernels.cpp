// The level amx: matmuls of many tokens by AMX; all else is the level avx512. The build compiles
// this file a second time with HEDDLE_EMULATES_TILES, as a level for tests: AVX2, and the tiles in
// C++.
#define HEDDLE_TILES
#if defined(HEDDLE_EMULATES_TILES)
#define HEDDLE_ISA_AVX2
#else
#define HEDDLE_ISA_AVX512
#endif

#include "kernels.h"

#if defined(HEDDLE_EMULATES_TILES)
#include "matmul_avx2.h"
#else
#include "matmul_avx512.h"
#endif
#include "slices.h"

namespace {

using namespace heddle;

const Kernels& base() {
#if defined(HEDDLE_EMULATES_TILES)
    return *avx2_kernels();
#else
    return *avx512_kernels();
#endif
}

template <size_t Row = 0>
void matmul_packed(const MatmulArgs& a) {
    if constexpr (Row < sizeof(kFormats) / sizeof(kFormats[0])) {
        constexpr Format F = kFormats[Row].format;
        if constexpr (is_quantised(F)) {
            if (a.w->format == F) {
                const ShapedTiles shaped(layout_of(F).parts);
                return matmul_slices<first_like(F)>(a);
            }
        }
        matmul_packed<Row + 1>(a);
    } else {
        base().matmul(a);
    }
}

void matmul_in_tiles(const MatmulArgs& a) {
    a.packed.tiles == nullptr ? base().matmul(a) : matmul_packed(a);
}

// As in integer_peak.h: products of registers, four sums in flight.
int64_t tile_multiply_adds(int64_t rounds) {
    TileShapes shapes;
    for (int i = 0; i < kTileRegisters; ++i) {
        shapes.rows[i] = kTileRows;
        shapes.bytes[i] = kTileBytes;
    }
    shape_tiles(shapes);
    for (int64_t round = 0; round < rounds; ++round) {
        multiply_tiles<0, 4, 6>();
        multiply_tiles<1, 5, 7>();
        multiply_tiles<2, 4, 6>();
        multiply_tiles<3, 5, 7>();
    }
    release_tiles();
    return rounds * 4 * kTileRows * (kTileBytes / 4) * kTileBytes;
}

Kernels with_tiles(const char* name) {
    Kernels kernels = base();
    kernels.name = name;
    kernels.matmul = matmul_in_tiles;
    kernels.packs_from = kPacksFrom;
    kernels.tile_tokens = kSliceTile;
    kernels.pack = pack;
    kernels.multiply_adds = tile_multiply_adds;
    kernels.multiplication = "tdpbssd";
    return kernels;
}

}  // namespace

namespace heddle {

#if defined(HEDDLE_EMULATES_TILES)
const Kernels* emulated_tiles_kernels() {
    static const Kernels kernels = with_tiles("emulated");
    return &kernels;
}
#else
const Kernels* amx_kernels() {
    static const Kernels kernels = with_tiles("amx");
    return &kernels;
}
#endif

}  // namespace heddle
