// Cuts tokens into tiles of nearly equal size.
#pragma once

#include <cstdint>

namespace heddle {

constexpr int tiles_of(int tokens, int most) { return (tokens + most - 1) / most; }

// The first token of tile `i` of `tiles`.
constexpr int tile_begin(int tokens, int tiles, int i) {
    return static_cast<int>(int64_t{tokens} * i / tiles);
}

}  // namespace heddle
