// How packed matrices are stored: one description per format, read by the packer and by every
// kernel.
//
// A panel holds `panel_rows` rows (8 or 16) for the whole width. It is a run of super-blocks; each
// begins with what a super-block shares, and then has per block of 32 columns:
//
//   scales    per half or whole block: f16, int8 or 4-bit, one value per row
//   low bits  of the codes
//   high bits of the codes, if any
//
// Codes are stored in groups of four columns. A byte belongs to one (row, column of the group) and
// holds that place's bits of several groups: 8 / bits of them, the first in the lowest bits. So
// unpacking a group is a shift and a mask on whole vectors, whatever the number of bits.
//
// A value is scale * (code - offset) + minimum, or scale * (table[code] - offset). Minima are
// stored with the sign they are added with.
#pragma once

#include <cstdint>

namespace heddle {

constexpr int kBlock = 32;       // columns that share an activation scale
constexpr int kGroups = 8;       // groups of four columns in a block
constexpr int kSuperBlocks = 8;  // blocks in a super-block of the K formats

enum class Format : int {
    kQ4_0,
    kQ4_1,
    kQ5_0,
    kQ5_1,
    kQ8_0,
    kIQ4_NL,
    kQ2_K,
    kQ3_K,
    kQ4_K,
    kQ5_K,
    kQ6_K,
    kIQ4_XS,
    kF16,
    kBF16,
    kF32
};

constexpr bool is_quantised(Format f) {
    return f != Format::kF16 && f != Format::kBF16 && f != Format::kF32;
}

// Where the scales of a block come from.
enum class Scale {
    kHalf,     // f16 per row and block; f16 minima after them
    kByte,     // int8 or uint8 per row times the super-block's f16; minima likewise
    kNibbles,  // 4-bit scale (low) and minimum (high) per row, times the super-block's f16 pair
};

struct Layout {
    int blocks;     // per super-block
    int low_bits;   // 2, 4 or 8
    int high_bits;  // 0, 1 or 2
    int offset;     // subtracted from the code
    int parts;      // of a block with a scale of their own: 1, or 2 of 16 columns
    bool minimum;
    bool signed_scale;  // kByte scales are int8 rather than uint8
    bool table;         // codes index the table of IQ4 values
    Scale scale;

    constexpr int bits() const { return low_bits + high_bits; }
    // Bytes per row.
    constexpr int header() const { return blocks == 1 ? 0 : minimum ? 4 : 2; }
    constexpr int scales() const {
        if (scale == Scale::kHalf) return minimum ? 4 : 2;
        return scale == Scale::kNibbles ? parts : minimum ? 2 * parts : parts;
    }
    constexpr int low() const { return kBlock * low_bits / 8; }
    constexpr int high() const { return kBlock * high_bits / 8; }
    constexpr int block() const { return scales() + low() + high(); }
    constexpr int super_block() const { return header() + blocks * block(); }
};

constexpr Layout layout_of(Format f) {
    switch (f) {
        case Format::kQ4_0:
            return {1, 4, 0, 8, 1, false, true, false, Scale::kHalf};
        case Format::kQ4_1:
            return {1, 4, 0, 0, 1, true, true, false, Scale::kHalf};
        case Format::kQ5_0:
            return {1, 4, 1, 16, 1, false, true, false, Scale::kHalf};
        case Format::kQ5_1:
            return {1, 4, 1, 0, 1, true, true, false, Scale::kHalf};
        case Format::kQ8_0:
            return {1, 8, 0, 128, 1, false, true, false, Scale::kHalf};
        case Format::kIQ4_NL:
            return {1, 4, 0, 128, 1, false, true, true, Scale::kHalf};
        case Format::kQ2_K:
            return {kSuperBlocks, 2, 0, 0, 2, true, false, false, Scale::kNibbles};
        case Format::kQ3_K:
            return {kSuperBlocks, 2, 1, 4, 2, false, true, false, Scale::kByte};
        case Format::kQ4_K:
            return {kSuperBlocks, 4, 0, 0, 1, true, false, false, Scale::kByte};
        case Format::kQ5_K:
            return {kSuperBlocks, 4, 1, 0, 1, true, false, false, Scale::kByte};
        case Format::kQ6_K:
            return {kSuperBlocks, 4, 2, 32, 2, false, true, false, Scale::kByte};
        case Format::kIQ4_XS:
            return {kSuperBlocks, 4, 0, 128, 1, false, true, true, Scale::kByte};
        default:
            return {1, 0, 0, 0, 1, false, true, false, Scale::kHalf};
    }
}

// What the codes of IQ4_NL and IQ4_XS stand for (the format's own table), plus 128 so that they
// are unsigned like other codes; their offset takes it away again.
constexpr uint8_t kIq4Table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                   129, 141, 153, 166, 181, 197, 217, 241};

}  // namespace heddle
