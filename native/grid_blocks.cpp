// Readers of the types whose codes come from grids (IQ1, IQ2, IQ3), and of packed ternary codes.
//
// A code is a digit of a grid's point, plus a flag: the sign of the value (IQ2, IQ3), or that of
// the shift of its group (IQ1_M). Tables in formats.h give the values.
#include <cstring>

#include "file_blocks.h"
#include "grids.h"

namespace heddle {

namespace {

uint32_t word_bits(const uint8_t* p) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    return bits;
}

// Eight signs, of which seven are stored: the number of minus signs is even.
uint8_t even_signs(uint32_t seven) {
    const uint32_t bits = seven & 127;
    return static_cast<uint8_t>(bits | static_cast<uint32_t>(__builtin_parity(bits)) << 7);
}

// Codes of eight values at a point of a grid of three levels.
void put_eight(Grid grid, int point, uint8_t signs, uint8_t* codes) {
    const uint8_t* digits = grid_points(grid).digits[point];
    for (int i = 0; i < 8; ++i) {
        codes[i] = static_cast<uint8_t>(digits[i] | (signs >> i & 1) << 2);
    }
}

// Codes of eight values at two points of a grid of eight levels.
void put_two_fours(Grid grid, int first, int second, uint8_t signs, uint8_t* codes) {
    const GridPoints& points = grid_points(grid);
    for (int i = 0; i < 8; ++i) {
        const int digit = points.digits[i < 4 ? first : second][i % 4];
        codes[i] = static_cast<uint8_t>(digit | (signs >> i & 1) << 3);
    }
}

// 2 s + 1 for nibbles s, the low one first: the scale is a multiple of half a step.
void read_odd_nibbles(const uint8_t* p, int count, uint8_t* scales) {
    for (int i = 0; i < count; ++i) {
        scales[i] = static_cast<uint8_t>((p[i / 2] >> (i % 2 * 4) & 15) * 2 + 1);
    }
}

}  // namespace

void read_iq2_xxs(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    for (int b = 0; b < 8; ++b) {
        const uint8_t* at = p + 2 + b * 8;
        const uint32_t signs = word_bits(at + 4);
        block.scales[b] = static_cast<uint8_t>((signs >> 28) * 2 + 1);
        for (int g = 0; g < 4; ++g) {
            put_eight(Grid::kIq2Xxs, at[g], even_signs(signs >> (7 * g)),
                      block.codes + b * 32 + g * 8);
        }
    }
}

void read_iq2_xs(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    for (int g = 0; g < 32; ++g) {
        const uint16_t bits = half_bits(p + 2 + g * 2);
        put_eight(Grid::kIq2Xs, bits & 511, even_signs(bits >> 9), block.codes + g * 8);
    }
    read_odd_nibbles(p + 66, 16, block.scales);
}

void read_iq2_s(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    const uint8_t *low = p + 2, *signs = p + 34, *high = p + 66;
    for (int g = 0; g < 32; ++g) {
        const int point = low[g] | (high[g / 4] >> (g % 4 * 2) & 3) << 8;
        put_eight(Grid::kIq2S, point, signs[g], block.codes + g * 8);
    }
    read_odd_nibbles(p + 74, 16, block.scales);
}

void read_iq3_xxs(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    for (int b = 0; b < 8; ++b) {
        const uint8_t* at = p + 2 + b * 8;
        const uint32_t signs = word_bits(p + 66 + b * 4);
        block.scales[b] = static_cast<uint8_t>((signs >> 28) * 2 + 1);
        for (int g = 0; g < 4; ++g) {
            put_two_fours(Grid::kIq3Xxs, at[g * 2], at[g * 2 + 1], even_signs(signs >> (7 * g)),
                          block.codes + b * 32 + g * 8);
        }
    }
}

void read_iq3_s(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    const uint8_t *low = p + 2, *high = p + 66, *signs = p + 74;
    for (int g = 0; g < 32; ++g) {
        const auto point = [&](int i) { return low[i] | (high[i / 8] >> (i % 8) & 1) << 8; };
        put_two_fours(Grid::kIq3S, point(g * 2), point(g * 2 + 1), signs[g], block.codes + g * 8);
    }
    read_odd_nibbles(p + 106, 8, block.scales);
}

// A value is d (2 s + 1) (digit - 1 + shift), and shift is 1/8 or -1/8 for 32 values. In eighths:
// 8 (2 s + 1) digit - (2 s + 1) (8 - shift).
void read_iq1_s(const uint8_t* p, FileBlock& block) {
    block.scale = half_bits(p);
    block.minimum = block.scale ^ 0x8000;
    for (int b = 0; b < 8; ++b) {
        const uint16_t bits = half_bits(p + 34 + b * 2);
        const int scale = (bits >> 12 & 7) * 2 + 1;
        block.scales[b] = static_cast<uint8_t>(8 * scale);
        block.minima[b] = static_cast<uint8_t>(scale * (bits & 0x8000 ? 9 : 7));
        for (int g = 0; g < 4; ++g) {
            const int point = p[2 + b * 4 + g] | (bits >> (3 * g) & 7) << 8;
            put_eight(Grid::kIq1S, point, 0, block.codes + b * 32 + g * 8);
        }
    }
}

void read_iq1_m(const uint8_t* p, FileBlock& block) {
    const uint8_t *low = p, *high = p + 32, *scales = p + 48;
    block.scale = 0;
    for (int i = 0; i < 4; ++i) {
        const uint16_t bits = half_bits(scales + i * 2);
        block.scale = static_cast<uint16_t>(block.scale | bits >> 12 << (4 * i));
        for (int k = 0; k < 4; ++k) {
            block.scales[i * 4 + k] = static_cast<uint8_t>((bits >> (3 * k) & 7) * 2 + 1);
        }
    }
    for (int g = 0; g < 32; ++g) {
        const int bits = high[g / 2] >> (g % 2 * 4) & 15;
        put_eight(Grid::kIq1S, low[g] | (bits & 7) << 8, bits & 8 ? 0xFF : 0, block.codes + g * 8);
    }
}

// Bytes of five ternary digits: byte * 3 ** k, then times 3 / 256, is digit k (TQ1_0).
void read_tq1_0(const uint8_t* p, FileBlock& block) {
    uint8_t* codes = block.codes;
    const auto read = [&](const uint8_t* from, int bytes, int digits) {
        uint8_t power = 1;
        for (int k = 0; k < digits; ++k, power = static_cast<uint8_t>(power * 3)) {
            for (int i = 0; i < bytes; ++i) {
                *codes++ = static_cast<uint8_t>(static_cast<uint8_t>(from[i] * power) * 3 >> 8);
            }
        }
    };
    read(p, 32, 5);
    read(p + 32, 16, 5);
    read(p + 48, 4, 4);
    block.scale = half_bits(p + 52);
}

// Four parts of 16 values. A scale is an E4M3 number without sign; ggml reads 0x7F, its NaN, as 0.
void read_nvfp4(const uint8_t* p, FileBlock& block) {
    constexpr uint16_t kOne = 0x3C00;
    block.scale = kOne;
    for (int part = 0; part < 4; ++part) {
        block.scales[part] = p[part] == 0x7F ? 0 : p[part] & 0x7F;
        for (int i = 0; i < 8; ++i) {
            const uint8_t byte = p[4 + part * 8 + i];
            block.codes[part * 16 + i] = byte & 15;
            block.codes[part * 16 + 8 + i] = byte >> 4;
        }
    }
}

}  // namespace heddle
