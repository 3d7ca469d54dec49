// The grids of IQ1, IQ2 and IQ3: points that several values of a block take together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle {

enum class Grid { kIq2Xxs, kIq2Xs, kIq2S, kIq3Xxs, kIq3S, kIq1S };

// Each point's coordinates, as numbers of levels: eight of three levels, or four of eight.
struct GridPoints {
    uint8_t digits[2048][8];
};

const GridPoints& grid_points(Grid grid);

}  // namespace heddle
