// Splits GGUF's quantised blocks into codes and scales. Only this file knows their bytes.
//
// The GGUF specification and the reference implementation of its quantisation define the layouts;
// tests compare them with the `gguf` package. formats.h declares the reader of each layout.
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

}  // namespace heddle
