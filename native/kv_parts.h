// The memory layout of keys and values of one page, layer and key/value head, for each KV type.
// Also loads them as sixteen floats, and stores those of a token.
//
// Keys are transposed, (head_dim, 32), or (head_dim / 4, 32, 4) for codes: sixteen positions load
// as one vector, and a score needs no sum across lanes. Values are (32, head_dim), or (8, head_dim,
// 4) for codes: sixteen elements of four positions load as one vector.
//
// Q8_0 is GGUF's format: 32 elements of one position's key or value share the scale d = max|x| /
// 127, stored in f16. The code of x is x / d with d before rounding, to nearest, ties to even (as
// in ggml's vector code; its scalar code rounds ties away from zero). No code is -128. Scales
// (head_dim / 32, 32) follow their codes, so that one load gets the scales of sixteen positions.
#pragma once

#include "formats.h"
#include "kernels.h"
#include "quantise.h"
#include "simd.h"

namespace {

using namespace heddle;

struct F16Part {
    static constexpr KvType kType = KvType::kF16;
    static constexpr bool kScaled = false, kLatents = false;

    F16Part(const uint8_t* part, int head_dim)
        : keys_(reinterpret_cast<const uint16_t*>(part)),
          values_(keys_ + head_dim * kPageTokens),
          head_dim_(head_dim) {}

    // Element d of sixteen positions' keys.
    V16 keys(int d, int position) const { return load_f16(keys_ + d * kPageTokens + position); }
    // Sixteen elements, d and after, of one position's value.
    V16 values(int position, int d) const { return load_f16(values_ + position * head_dim_ + d); }

    static void store_key(uint8_t* part, int head_dim, int position, const float* key) {
        uint16_t* keys = reinterpret_cast<uint16_t*>(part) + position;
        for (int d = 0; d < head_dim; d += 16) {
            uint16_t halves[16];
            store_f16(halves, load(key + d));
            for (int i = 0; i < 16; ++i) keys[(d + i) * kPageTokens] = halves[i];
        }
    }
    static void store_value(uint8_t* part, int head_dim, int position, const float* value) {
        uint16_t* values = reinterpret_cast<uint16_t*>(part) + (kPageTokens + position) * head_dim;
        for (int d = 0; d < head_dim; d += 16) store_f16(values + d, load(value + d));
    }

  private:
    const uint16_t *keys_, *values_;
    int head_dim_;
};

// Keys' codes, keys' scales, values' codes, values' scales.
struct Q8Part {
    static constexpr KvType kType = KvType::kQ8_0;
    static constexpr bool kScaled = true, kLatents = false;

    Q8Part(const uint8_t* part, int head_dim)
        : keys_(reinterpret_cast<const int8_t*>(part)),
          values_(keys_ + half_bytes(head_dim)),
          key_scales_(reinterpret_cast<const uint16_t*>(keys_ + code_bytes(head_dim))),
          value_scales_(reinterpret_cast<const uint16_t*>(values_ + code_bytes(head_dim))),
          head_dim_(head_dim) {}

    // The codes of elements d to d + 3 of sixteen positions' keys; d is a multiple of 4.
    Codes4 key_codes(int d, int position) const {
        return load_codes4(keys_ + d * kPageTokens + position * 4);
    }
    // Elements d to d + 15 of the values of four positions, from `position` on, a multiple of 4.
    Signed4 value_codes(int position, int d) const {
        return load_signed4(values_ + position * head_dim_ + d * 4);
    }
    // The scales of a block of the head at sixteen positions.
    V16 key_scales(int block, int position) const {
        return load_f16(key_scales_ + block * kPageTokens + position);
    }
    V16 value_scales(int block, int position) const {
        return load_f16(value_scales_ + block * kPageTokens + position);
    }

    static void store_key(uint8_t* part, int head_dim, int position, const float* key) {
        for (int d = 0; d < head_dim; d += kBlock) {
            int8_t codes[kBlock];
            store_scale(part, head_dim, d, position, encode(key + d, codes));
            for (int i = 0; i < kBlock; i += 4) {
                std::memcpy(part + (d + i) * kPageTokens + position * 4, codes + i, 4);
            }
        }
    }
    static void store_value(uint8_t* part, int head_dim, int position, const float* value) {
        uint8_t* values = part + half_bytes(head_dim);
        uint8_t* four = values + position / 4 * 4 * head_dim + position % 4;
        for (int d = 0; d < head_dim; d += kBlock) {
            int8_t codes[kBlock];
            store_scale(values, head_dim, d, position, encode(value + d, codes));
            for (int i = 0; i < kBlock; ++i) four[(d + i) * 4] = static_cast<uint8_t>(codes[i]);
        }
    }

  private:
    static int code_bytes(int head_dim) { return kPageTokens * head_dim; }
    static int half_bytes(int head_dim) { return code_bytes(head_dim) + 2 * head_dim; }

    // Codes of 32 values; returns d, NaN where a value is not finite.
    static float encode(const float* x, int8_t* codes) { return quantise_block(x, codes) / 127.0f; }
    static void store_scale(uint8_t* half, int head_dim, int d, int position, float scale) {
        uint16_t lanes[16];
        store_f16(lanes, splat(scale));
        const int at = code_bytes(head_dim) + 2 * (d + position);
        std::memcpy(half + at, lanes, sizeof lanes[0]);
    }

    const int8_t *keys_, *values_;
    const uint16_t *key_scales_, *value_scales_;
    int head_dim_;
};

}  // namespace
