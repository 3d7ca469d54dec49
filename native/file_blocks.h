// Splits GGUF's quantised blocks into codes and scales. Only this file knows their bytes.
//
// The GGUF specification and the reference implementation of its quantisation define the layouts;
// tests compare them with the `gguf` package.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle {

enum class Format : int;  // formats.h

// A block of the file: 32 values, or a super-block of up to 256.
struct FileBlock {
    uint16_t
        scale;  // f16 bits; of a type without such a scale 1, or NaN if the block's own scale is
    uint16_t minimum;    // f16 bits, added; zero where the format has none
    uint8_t scales[16];  // per part: bytes, signed ones in two's complement
    uint8_t minima[16];  // per part
    uint8_t codes[256];  // unsigned, before the offset is subtracted
};

// The bits of an f16 in the file.
inline uint16_t half_bits(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

// Bytes in the file of one (super-)block, or of a float.
int file_block_bytes(Format format);
// Splits one (super-)block.
void read_block(Format format, const uint8_t* bytes, FileBlock& block);
// Its values, as the file format defines them.
void dequantise_block(Format format, const FileBlock& block, float* out);

// Readers, one per layout of bytes. They set all but minima, and minima where the format has them.
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

}  // namespace heddle
