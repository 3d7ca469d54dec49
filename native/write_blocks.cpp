// Quantised blocks to the bytes of a file: the inverse of the readers in file_blocks.cpp.
#include <cstring>

#include "file_blocks.h"

namespace heddle {

namespace {

void put_half(uint8_t* p, uint16_t bits) { std::memcpy(p, &bits, 2); }

// 32 nibbles in 16 bytes: the low ones first.
void put_nibbles(const uint8_t* codes, uint8_t* p) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>((codes[i] & 15) | codes[i + 16] << 4);
}

void put_fifth_bits(const uint8_t* codes, uint8_t* p) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
    std::memcpy(p, &bits, 4);
}

void put_six_bit_pairs(const FileBlock& block, uint8_t* p) {
    for (int i = 0; i < 4; ++i) {
        const uint8_t scale = block.scales[i + 4], minimum = block.minima[i + 4];
        p[i] = static_cast<uint8_t>(block.scales[i] | scale >> 4 << 6);
        p[i + 4] = static_cast<uint8_t>(block.minima[i] | minimum >> 4 << 6);
        p[i + 8] = static_cast<uint8_t>((scale & 15) | minimum << 4);
    }
}

void put_long_nibbles(const uint8_t* codes, uint8_t* p) {
    for (int pair = 0; pair < 4; ++pair) {
        const uint8_t *low = codes + pair * 64, *high = low + 32;
        for (int i = 0; i < 32; ++i) {
            p[pair * 32 + i] = static_cast<uint8_t>((low[i] & 15) | high[i] << 4);
        }
    }
}

void put_high_bits(const uint8_t* codes, int place, uint8_t* p) {
    for (int i = 0; i < 32; ++i) {
        int bits = 0;
        for (int run = 0; run < 8; ++run) bits |= (codes[run * 32 + i] >> place & 1) << run;
        p[i] = static_cast<uint8_t>(bits);
    }
}

}  // namespace

void write_q4_0(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    put_nibbles(block.codes, p + 2);
}

void write_q5_0(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    put_fifth_bits(block.codes, p + 2);
    put_nibbles(block.codes, p + 6);
}

void write_q5_1(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    put_half(p + 2, block.minimum);
    put_fifth_bits(block.codes, p + 4);
    put_nibbles(block.codes, p + 8);
}

void write_q8_0(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    for (int i = 0; i < 32; ++i) p[2 + i] = block.codes[i] ^ 0x80;  // minus 128
}

void write_q4_k(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    put_half(p + 2, block.minimum ^ 0x8000);
    put_six_bit_pairs(block, p + 4);
    put_long_nibbles(block.codes, p + 16);
}

void write_q5_k(const FileBlock& block, uint8_t* p) {
    put_half(p, block.scale);
    put_half(p + 2, block.minimum ^ 0x8000);
    put_six_bit_pairs(block, p + 4);
    put_high_bits(block.codes, 4, p + 16);
    put_long_nibbles(block.codes, p + 48);
}

void write_q6_k(const FileBlock& block, uint8_t* p) {
    std::memset(p, 0, 192);
    for (int run = 0; run < 8; ++run) {  // 32 codes each, four runs to a half
        const int half = run / 4, in_half = run % 4;
        uint8_t* low = p + half * 64 + in_half % 2 * 32;
        uint8_t* high = p + 128 + half * 32;
        const uint8_t* codes = block.codes + run * 32;
        for (int i = 0; i < 32; ++i) {
            low[i] |= static_cast<uint8_t>((codes[i] & 15) << (in_half / 2 * 4));
            high[i] |= static_cast<uint8_t>(codes[i] >> 4 << (in_half * 2));
        }
    }
    std::memcpy(p + 192, block.scales, 16);
    put_half(p + 208, block.scale);
}

void write_mxfp4(const FileBlock& block, uint8_t* p) {
    p[0] = block.scales[0];
    put_nibbles(block.codes, p + 1);
}

}  // namespace heddle
