#include "file_blocks.h"

#include <cstring>

#include "formats.h"
#include "simd.h"

namespace heddle {

namespace {

// 32 nibbles in 16 bytes: the low ones first.
void read_nibbles(const uint8_t* p, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = p[i] & 15;
        codes[i + 16] = p[i] >> 4;
    }
}

// One more bit, of weight 16, for 32 codes in 4 bytes (Q5_0, Q5_1). Eight codes at a time: byte i
// of a product keeps only bit i of `p`, and carries into its highest bit.
void read_fifth_bits(const uint8_t* p, uint8_t* codes) {
    constexpr uint64_t kOnes = 0x0101010101010101, kBits = 0x8040201008040201;
    for (int i = 0; i < 4; ++i, codes += 8) {
        uint64_t eight;
        std::memcpy(&eight, codes, 8);
        eight |= (((p[i] * kOnes & kBits) + 0x7F * kOnes) >> 7 & kOnes) << 4;
        std::memcpy(codes, &eight, 8);
    }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K).
void read_six_bit_pairs(const uint8_t* p, FileBlock& block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = p[i] & 63;
        block.minima[i] = p[i + 4] & 63;
        block.scales[i + 4] = static_cast<uint8_t>((p[i + 8] & 15) | p[i] >> 6 << 4);
        block.minima[i + 4] = static_cast<uint8_t>(p[i + 8] >> 4 | p[i + 4] >> 6 << 4);
    }
}

// Sixteen 6-bit scales, offset 32, in 12 bytes (Q3_K).
void read_six_bit_scales(const uint8_t* p, uint8_t* scales) {
    for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? p[i] & 15 : p[i - 8] >> 4;
        const int high = p[8 + i % 4] >> (i / 4 * 2) & 3;
        scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
}

// 256 codes of two bits in 64 bytes (Q2_K, Q3_K, TQ2_0): 32 bytes hold 128 codes, 32 at each shift.
void read_two_bit_codes(const uint8_t* p, uint8_t* codes) {
    for (int run = 0; run < 8; ++run, codes += 32) {
        const uint8_t* from = p + run / 4 * 32;
        for (int i = 0; i < 32; ++i) codes[i] = from[i] >> (run % 4 * 2) & 3;
    }
}

// 256 nibbles in 128 bytes (Q4_K, Q5_K): 32 bytes hold 64 codes, the low ones first.
void read_long_nibbles(const uint8_t* p, uint8_t* codes) {
    for (int run = 0; run < 8; ++run, codes += 32) {
        const uint8_t* from = p + run / 2 * 32;
        for (int i = 0; i < 32; ++i) codes[i] = from[i] >> (run % 2 * 4) & 15;
    }
}

// One more bit, of weight 1 << place, for 256 codes in 32 bytes (Q3_K, Q5_K): bit `run` of byte i
// belongs to code run * 32 + i.
void read_high_bits(const uint8_t* p, int place, uint8_t* codes) {
    for (int run = 0; run < 8; ++run, codes += 32) {
        for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((p[i] >> run & 1) << place);
    }
}

}  // namespace

void read_q4_0(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    read_nibbles(p + 2, block.codes);
}

void read_q4_1(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    block.minimum = half_bits(p + 2);
    read_nibbles(p + 4, block.codes);
}

void read_q5_0(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    read_nibbles(p + 6, block.codes);
    read_fifth_bits(p + 2, block.codes);
}

void read_q5_1(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    block.minimum = half_bits(p + 2);
    read_nibbles(p + 8, block.codes);
    read_fifth_bits(p + 4, block.codes);
}

void read_q8_0(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    for (int i = 0; i < 32; ++i) block.codes[i] = p[2 + i] ^ 0x80;  // plus 128
}

void read_q2_k(const uint8_t* p, FileBlock& block) {
    for (int i = 0; i < 16; ++i) {
        block.scales[i] = p[i] & 15;
        block.minima[i] = p[i] >> 4;
    }
    read_two_bit_codes(p + 16, block.codes);
    block.scale = half_bits(p + 80);
    block.minimum = half_bits(p + 82) ^ 0x8000;
}

void read_q3_k(const uint8_t* p, FileBlock& block) {
    read_two_bit_codes(p + 32, block.codes);
    read_high_bits(p, 2, block.codes);
    read_six_bit_scales(p + 96, block.scales);
    block.scale = half_bits(p + 108);
}

void read_q4_k(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    block.minimum = half_bits(p + 2) ^ 0x8000;
    read_six_bit_pairs(p + 4, block);
    read_long_nibbles(p + 16, block.codes);
}

void read_q5_k(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    block.minimum = half_bits(p + 2) ^ 0x8000;
    read_six_bit_pairs(p + 4, block);
    read_long_nibbles(p + 48, block.codes);
    read_high_bits(p + 16, 4, block.codes);
}

void read_q6_k(const uint8_t* p, FileBlock& block) {
    for (int run = 0; run < 8; ++run) {  // 32 codes each, four runs to a half
        const int half = run / 4, in_half = run % 4;
        const uint8_t* low = p + half * 64 + in_half % 2 * 32;
        const uint8_t* high = p + 128 + half * 32;
        uint8_t* codes = block.codes + run * 32;
        for (int i = 0; i < 32; ++i) {
            const int bits = low[i] >> (in_half / 2 * 4) & 15;
            codes[i] = static_cast<uint8_t>(bits | (high[i] >> (in_half * 2) & 3) << 4);
        }
    }
    std::memcpy(block.scales, p + 192, 16);
    block.scale = half_bits(p + 208);
}

void read_iq4_xs(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    const uint16_t high = half_bits(p + 2);
    for (int i = 0; i < 8; ++i) {
        const int low = p[4 + i / 2] >> (i % 2 * 4) & 15;
        block.scales[i] = static_cast<uint8_t>((low | (high >> (2 * i) & 3) << 4) - 32);
        read_nibbles(p + 8 + i * 16, block.codes + i * 32);
    }
}

void read_q1_0(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    for (int i = 0; i < 128; ++i) block.codes[i] = p[2 + i / 8] >> (i % 8) & 1;
}

void read_tq2_0(const uint8_t* p, FileBlock& block) {
    read_two_bit_codes(p, block.codes);
    block.scale = half_bits(p + 64);
}

void read_mxfp4(const uint8_t* p, FileBlock& block) {
    constexpr uint16_t kOne = 0x3C00, kNaN = 0x7E00;
    block.scale = p[0] == 255 ? kNaN : kOne;
    block.scales[0] = p[0];
    read_nibbles(p + 1, block.codes);
}

namespace {

float scale_of(const Layout& layout, const FileBlock& block, int part) {
    const float d = half_to_float(block.scale) * layout.factor;
    const uint8_t byte = block.scales[part];
    switch (layout.scale) {
        case Scale::kHalf:
        case Scale::kShared:
            return d;
        case Scale::kE8M0:
            return half_of_e8m0(byte);
        case Scale::kE4M3:
            return half_of_e4m3(byte);
        case Scale::kInt8:
            return d * static_cast<float>(static_cast<int8_t>(byte));
        case Scale::kUint8:
        case Scale::kNibbles:
            return d * static_cast<float>(byte);
    }
    return 0.0f;
}

float minimum_of(const Layout& layout, const FileBlock& block, int part) {
    if (!layout.minimum) return 0.0f;
    const float m = half_to_float(block.minimum) * layout.factor;
    return layout.scale == Scale::kHalf ? m : m * static_cast<float>(block.minima[part]);
}

}  // namespace

int file_block_bytes(Format format) { return find_format(static_cast<int>(format))->file_bytes; }

void read_block(Format format, const uint8_t* bytes, FileBlock& block) {
    block.minimum = 0;
    find_format(static_cast<int>(format))->read(bytes, block);
}

void dequantise_block(Format format, const FileBlock& block, float* out) {
    const Layout& layout = layout_of(format);
    const int in_part = kBlock / layout.parts;
    for (int part = 0; part < layout.blocks * layout.parts; ++part) {
        const float scale = scale_of(layout, block, part);
        const float minimum = minimum_of(layout, block, part);
        for (int i = part * in_part; i < (part + 1) * in_part; ++i) {
            const int code = layout.has_table() ? layout.values()[block.codes[i]] : block.codes[i];
            out[i] = scale * static_cast<float>(code - layout.offset) + minimum;
        }
    }
}

}  // namespace heddle
