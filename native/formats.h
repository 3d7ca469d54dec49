// The native table of tensor types: one row per type that matmuls read.
//
// A row describes a block in the file (its bytes and the function that reads it) and in a packed
// matrix (its `Layout`). The packer, the kernels of all instruction levels, the bindings and
// tests/native/levels.cpp use this table and name no quantised type. The other half of the table is
// src/heddle/weights/tensor_types.py; CONTRIBUTING.md says how to add a type.
//
// A panel holds `panel_rows` rows (8 or 16) for the whole width. It is a run of super-blocks; each
// begins with what a super-block shares, and then has per block of 32 columns:
//
//   scales    per half or whole block, one value per row
//   low bits  of the codes
//   high bits of the codes, if any
//
// Floats have their columns one after the other, a value of each row; integers (I8) count as
// floats. F8_E4M3 is a float whose runs of 64 columns share a scale per row: the scales, float32,
// and then the columns of the run.
//
// Codes are stored in groups of four columns. A byte belongs to one (row, column of the group) and
// holds that place's bits of several groups: 8 / bits of them, the first in the lowest bits. So
// unpacking a group is a shift and a mask on whole vectors, whatever the number of bits.
//
// A value is scale * (code - offset) + minimum, or scale * (table[code] - offset). Minima are
// stored with the sign they are added with.
#pragma once

#include <cstdint>

#include "file_blocks.h"

namespace heddle {

constexpr int kBlock = 32;  // columns that share an activation scale
constexpr int kGroups = 8;  // groups of four columns in a block

// A type's number in GGUF, or one from 1000 on if GGUF lacks it. Only floats have names here; a
// quantised type is a row of the table.
enum class Format : int { kF32 = 0, kF16 = 1, kI8 = 24, kBF16 = 30, kF8E4M3 = 1000 };

// Where the scale of a part of a block comes from.
enum class Scale {
    kHalf,     // f16 per row and block; f16 minima after them
    kE8M0,     // a byte e per row and part, for 2 ** (e - 128)
    kE4M3,     // a byte per row and part: half of an E4M3 number without sign
    kShared,   // the super-block's f16
    kUint8,    // uint8 per row times the super-block's f16; minima likewise
    kInt8,     // int8 per row times the super-block's f16
    kNibbles,  // 4-bit scale (low) and minimum (high) per row, times the super-block's f16 pair
};

// The values of codes that are indices into a table.
enum class Table { kNone, kIq4, kE2M1, kIq1, kIq2, kIq3Xxs, kIq3S, kSign };

// Values of the tables, plus the offset of their format so that they are unsigned like other codes.
struct TableValues {
    uint8_t of[16];
};
inline constexpr TableValues kTables[] = {
    {},
    // The format's own: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, plus 128.
    {{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}},
    // E2M1 doubled: 0 1 2 3 4 6 8 12 and the same with a sign, plus 12.
    {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}},
    // Eighths: -7 1 9, and with the other shift -9 -1 7; plus 9.
    {{2, 10, 18, 9, 0, 8, 16, 9}},
    // 8 25 43 and the same with a sign, plus 43.
    {{51, 68, 86, 43, 35, 18, 0, 43}},
    // 4 12 20 28 36 44 52 62 and the same with a sign, plus 62.
    {{66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0}},
    // 1 3 5 7 9 11 13 15 and the same with a sign, plus 15.
    {{16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0}},
    // -1 1, plus 1.
    {{0, 2}},
};

struct Layout {
    int blocks;     // per super-block; 0 for floats, which have no blocks
    int low_bits;   // 1, 2, 4 or 8
    int high_bits;  // 0, 1 or 2
    int offset;     // subtracted from the code, or from the table's value
    Scale scale;
    int parts = 1;  // parts of a block that have their own scale: 1, or 2 of 16 columns
    bool minimum = false;
    Table table = Table::kNone;
    float factor = 1.0f;  // a power of two that multiplies the super-block's f16
    int run = 1;          // of floats: columns that share a scale; 1: they have none

    constexpr int bits() const { return low_bits + high_bits; }
    constexpr bool has_table() const { return table != Table::kNone; }
    constexpr const uint8_t* values() const { return kTables[static_cast<int>(table)].of; }
    // The largest number that is multiplied with an activation.
    constexpr int top() const {
        if (!has_table()) return (1 << bits()) - 1;
        int most = 0;
        for (int i = 0; i < 1 << bits(); ++i) most = values()[i] > most ? values()[i] : most;
        return most;
    }
    // Columns of a (super-)block, or of a run of floats.
    constexpr int columns() const { return blocks == 0 ? run : blocks * kBlock; }

    // Bytes per row.
    constexpr int header() const {
        if (scale == Scale::kHalf || scale == Scale::kE8M0 || scale == Scale::kE4M3) return 0;
        return minimum ? 4 : 2;
    }
    constexpr int scales() const {
        if (scale == Scale::kShared) return 0;
        if (scale == Scale::kHalf) return minimum ? 4 : 2;
        return scale == Scale::kNibbles ? parts : minimum ? 2 * parts : parts;
    }
    constexpr int low() const { return kBlock * low_bits / 8; }
    constexpr int high() const { return kBlock * high_bits / 8; }
    constexpr int block() const { return scales() + low() + high(); }
    constexpr int super_block() const { return header() + blocks * block(); }
};

constexpr Layout scaled_floats(int run) {
    Layout layout{};
    layout.run = run;
    return layout;
}

// Readers, one per layout of bytes (file_blocks.cpp, grid_blocks.cpp). They set all but minima, and
// minima where the format has them.
using Reader = void (*)(const uint8_t* bytes, FileBlock& block);

void read_q4_0(const uint8_t* bytes, FileBlock& block);
void read_q4_1(const uint8_t* bytes, FileBlock& block);
void read_q5_0(const uint8_t* bytes, FileBlock& block);
void read_q5_1(const uint8_t* bytes, FileBlock& block);
void read_q8_0(const uint8_t* bytes, FileBlock& block);
void read_q2_k(const uint8_t* bytes, FileBlock& block);
void read_q3_k(const uint8_t* bytes, FileBlock& block);
void read_q4_k(const uint8_t* bytes, FileBlock& block);
void read_q5_k(const uint8_t* bytes, FileBlock& block);
void read_q6_k(const uint8_t* bytes, FileBlock& block);
void read_iq4_xs(const uint8_t* bytes, FileBlock& block);
void read_q1_0(const uint8_t* bytes, FileBlock& block);
void read_tq2_0(const uint8_t* bytes, FileBlock& block);
void read_mxfp4(const uint8_t* bytes, FileBlock& block);
void read_nvfp4(const uint8_t* bytes, FileBlock& block);
void read_tq1_0(const uint8_t* bytes, FileBlock& block);
void read_iq1_s(const uint8_t* bytes, FileBlock& block);
void read_iq1_m(const uint8_t* bytes, FileBlock& block);
void read_iq2_xxs(const uint8_t* bytes, FileBlock& block);
void read_iq2_xs(const uint8_t* bytes, FileBlock& block);
void read_iq2_s(const uint8_t* bytes, FileBlock& block);
void read_iq3_xxs(const uint8_t* bytes, FileBlock& block);
void read_iq3_s(const uint8_t* bytes, FileBlock& block);

// Writers of the types that Heddle quantises to (write_blocks.cpp).
using Writer = void (*)(const FileBlock& block, uint8_t* bytes);

void write_q4_0(const FileBlock& block, uint8_t* bytes);
void write_q5_0(const FileBlock& block, uint8_t* bytes);
void write_q5_1(const FileBlock& block, uint8_t* bytes);
void write_q8_0(const FileBlock& block, uint8_t* bytes);
void write_q4_k(const FileBlock& block, uint8_t* bytes);
void write_q5_k(const FileBlock& block, uint8_t* bytes);
void write_q6_k(const FileBlock& block, uint8_t* bytes);
void write_mxfp4(const FileBlock& block, uint8_t* bytes);

// The function that writes a type's file blocks, if floats are quantised to the type. The flag
// stands beside the pointer because GCC 12 with -fsanitize=undefined compares no function pointers
// in constant expressions.
struct BlockWriter {
    constexpr BlockWriter() = default;
    constexpr BlockWriter(Writer writer) : function(writer), exists(true) {}

    Writer function = nullptr;
    bool exists = false;
};

struct FormatRow {
    const char* name;
    Format format;
    int file_bytes;  // of a (super-)block, a run, or a float
    Reader read;
    Layout layout;
    BlockWriter write = {};
};

inline constexpr FormatRow kFormats[] = {
    {"F32", Format::kF32, 4, nullptr, {}},
    {"F16", Format::kF16, 2, nullptr, {}},
    {"BF16", Format::kBF16, 2, nullptr, {}},
    {"Q4_0", Format{2}, 18, read_q4_0, {1, 4, 0, 8, Scale::kHalf}, write_q4_0},
    {"Q4_1", Format{3}, 20, read_q4_1, {1, 4, 0, 0, Scale::kHalf, 1, true}},
    {"Q5_0", Format{6}, 22, read_q5_0, {1, 4, 1, 16, Scale::kHalf}, write_q5_0},
    {"Q5_1", Format{7}, 24, read_q5_1, {1, 4, 1, 0, Scale::kHalf, 1, true}, write_q5_1},
    {"Q8_0", Format{8}, 34, read_q8_0, {1, 8, 0, 128, Scale::kHalf}, write_q8_0},
    {"Q2_K", Format{10}, 84, read_q2_k, {8, 2, 0, 0, Scale::kNibbles, 2, true}},
    {"Q3_K", Format{11}, 110, read_q3_k, {8, 2, 1, 4, Scale::kInt8, 2}},
    {"Q4_K", Format{12}, 144, read_q4_k, {8, 4, 0, 0, Scale::kUint8, 1, true}, write_q4_k},
    {"Q5_K", Format{13}, 176, read_q5_k, {8, 4, 1, 0, Scale::kUint8, 1, true}, write_q5_k},
    {"Q6_K", Format{14}, 210, read_q6_k, {8, 4, 2, 32, Scale::kInt8, 2}, write_q6_k},
    {"IQ2_XXS",
     Format{16},
     66,
     read_iq2_xxs,
     {8, 2, 1, 43, Scale::kUint8, 1, false, Table::kIq2, 0.125f}},
    {"IQ2_XS",
     Format{17},
     74,
     read_iq2_xs,
     {8, 2, 1, 43, Scale::kUint8, 2, false, Table::kIq2, 0.125f}},
    {"IQ3_XXS",
     Format{18},
     98,
     read_iq3_xxs,
     {8, 4, 0, 62, Scale::kUint8, 1, false, Table::kIq3Xxs, 0.25f}},
    {"IQ1_S",
     Format{19},
     50,
     read_iq1_s,
     {8, 2, 0, 0, Scale::kUint8, 1, true, Table::kNone, 0.125f}},
    {"IQ4_NL", Format{20}, 18, read_q4_0, {1, 4, 0, 128, Scale::kHalf, 1, false, Table::kIq4}},
    {"IQ3_S", Format{21}, 110, read_iq3_s, {8, 4, 0, 15, Scale::kUint8, 1, false, Table::kIq3S}},
    {"IQ2_S",
     Format{22},
     82,
     read_iq2_s,
     {8, 2, 1, 43, Scale::kUint8, 2, false, Table::kIq2, 0.125f}},
    {"IQ4_XS", Format{23}, 136, read_iq4_xs, {8, 4, 0, 128, Scale::kInt8, 1, false, Table::kIq4}},
    {"I8", Format::kI8, 1, nullptr, {}},
    {"IQ1_M",
     Format{29},
     56,
     read_iq1_m,
     {8, 2, 1, 9, Scale::kUint8, 2, false, Table::kIq1, 0.125f}},
    {"TQ1_0", Format{34}, 54, read_tq1_0, {8, 2, 0, 1, Scale::kShared}},
    {"TQ2_0", Format{35}, 66, read_tq2_0, {8, 2, 0, 1, Scale::kShared}},
    {"MXFP4",
     Format{39},
     17,
     read_mxfp4,
     {1, 4, 0, 12, Scale::kE8M0, 1, false, Table::kE2M1},
     write_mxfp4},
    {"NVFP4", Format{40}, 36, read_nvfp4, {2, 4, 0, 12, Scale::kE4M3, 2, false, Table::kE2M1}},
    {"Q1_0", Format{41}, 18, read_q1_0, {4, 1, 0, 1, Scale::kShared, 1, false, Table::kSign}},
    {"F8_E4M3", Format::kF8E4M3, 68, nullptr, scaled_floats(64)},
};

constexpr const FormatRow* find_format(int number) {
    for (const FormatRow& row : kFormats) {
        if (static_cast<int>(row.format) == number) return &row;
    }
    return nullptr;
}

constexpr const Layout& layout_of(Format f) { return find_format(static_cast<int>(f))->layout; }

constexpr bool same(const Layout& a, const Layout& b) {
    return a.blocks == b.blocks && a.low_bits == b.low_bits && a.high_bits == b.high_bits &&
           a.offset == b.offset && a.scale == b.scale && a.parts == b.parts &&
           a.minimum == b.minimum && a.table == b.table && a.factor == b.factor && a.run == b.run;
}

// The first type whose panels are those of type `f`: the two share kernels.
constexpr Format first_like(Format f) {
    const Layout& layout = layout_of(f);
    if (layout.blocks == 0) return f;
    for (const FormatRow& row : kFormats) {
        if (same(row.layout, layout)) return row.format;
    }
    return f;
}

constexpr bool is_quantised(Format f) { return layout_of(f).blocks > 0; }

// Bytes of a float, without its scale.
constexpr int float_bytes(Format f) {
    return f == Format::kF32 ? 4 : f == Format::kI8 || f == Format::kF8E4M3 ? 1 : 2;
}

}  // namespace heddle
