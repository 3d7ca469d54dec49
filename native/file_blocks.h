// GGUF's quantised blocks, taken apart into codes and scales: the one place that knows their bytes.
//
// Layouts as the GGUF specification and the reference implementation of its quantisation define
// them; tests hold them to the `gguf` package.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"

namespace heddle {

// A block of 32 values, or a super-block of 256.
struct FileBlock {
    uint16_t scale;      // f16 bits
    uint16_t minimum;    // f16 bits, added; zero where the format has none
    uint8_t scales[16];  // per part: bytes, signed ones in two's complement
    uint8_t minima[16];  // per part
    uint8_t codes[256];  // unsigned, without the offset taken away
};

// The bits of an f16 in the file.
inline uint16_t half_bits(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

// Bytes in the file of one block (formats of 32) or super-block (formats of 256).
int file_block_bytes(Format format);
void read_block(Format format, const uint8_t* bytes, FileBlock& block);

}  // namespace heddle
