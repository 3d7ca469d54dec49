// How slices and packed activations lie in memory; see slices.h.
#pragma once

#include "kernels.h"

namespace {

using namespace heddle;

constexpr int kVector = kPanelRows * 4;  // bytes
constexpr int kPacksFrom = 24;           // tokens; with fewer, unpacking costs more than it saves

// A block of columns in a slice: for each part its scale, its shift and, if the format has one, its
// minimum; then a byte for each code. kSliceOffset stands in for the format's offset, if it has
// one.
constexpr int part_bytes(bool minimum) { return (minimum ? 3 : 2) * kVector; }

// The numbers of T tokens' scales in a packed block, after the codes.
template <int T>
struct PackedScales {
    float d[T], s[T], half_s[2][T];
    int32_t start[T], half_start[2][T];
};
static_assert(sizeof(PackedScales<1>) == kPackedBlock - kBlock);

}  // namespace
