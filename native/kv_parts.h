// The memory layout of keys and values of one page, layer and key/value head, for each KV type.
// Also loads them as sixteen floats, and stores those of a token.
//
// Keys are transposed, (head_dim, 32), or (head_dim / 4, 32, 4) for codes: sixteen positions load
// as one vector, and a score needs no sum across lanes. Values are (32, head_dim), or (8, head_dim,
// 4) for codes: sixteen elements of four positions load as one vector. Scales (head_dim / 32, 32)
// follow their codes, so that one load gets the scales of sixteen positions.
//
// Q8_0 is GGUF's format: 32 elements of one position's key or value share the scale d = max|x| /
// 127, stored in f16. The code of x is x / d with d before rounding, to nearest, ties to even (as
// in ggml's vector code; its scalar code rounds ties away from zero). No code is -128.
//
// Q4 rotates a head (rotation.h). Then 32 elements share the scale d = max|x| / 16, stored in f16.
// Code u stands for (2u - 15) * d, the middle of one of sixteen equal parts between -max|x| and
// max|x|. A byte holds two codes, so two of Q8_0's vectors are one: of the next four elements of
// keys, or of the next four positions of values, in the upper halves.
#pragma once

#include "formats.h"
#include "kernels.h"
#include "quantise.h"
#include "rotation.h"
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
template <KvType Type>
class CodedPart {
  public:
    static constexpr KvType kType = Type;
    static constexpr bool kScaled = true, kLatents = false;

    CodedPart(const uint8_t* part, int head_dim)
        : keys_(part),
          values_(part + half_bytes(head_dim)),
          key_scales_(scales(keys_, head_dim)),
          value_scales_(scales(values_, head_dim)),
          head_dim_(head_dim) {}

    // The scales of a block of the head at sixteen positions.
    V16 key_scales(int block, int position) const {
        return load_f16(key_scales_ + block * kPageTokens + position);
    }
    V16 value_scales(int block, int position) const {
        return load_f16(value_scales_ + block * kPageTokens + position);
    }

  protected:
    static int half_bytes(int head_dim) { return static_cast<int>(kv_half_bytes(Type, head_dim)); }
    static const uint16_t* scales(const uint8_t* half, int head_dim) {
        return reinterpret_cast<const uint16_t*>(half + half_bytes(head_dim) - 2 * head_dim);
    }
    static void store_scale(uint8_t* half, int head_dim, int d, int position, float scale) {
        uint16_t lanes[16];
        store_f16(lanes, splat(scale));
        const int at = half_bytes(head_dim) - 2 * head_dim + 2 * (d + position);
        std::memcpy(half + at, lanes, sizeof lanes[0]);
    }

    const uint8_t *keys_, *values_;
    const uint16_t *key_scales_, *value_scales_;
    int head_dim_;
};

struct Q8Part : CodedPart<KvType::kQ8_0> {
    using CodedPart::CodedPart;

    // The codes of four elements of sixteen positions' keys: d and after, a multiple of 8, or in
    // the upper half d + 4 and after.
    Codes4 key_codes(int d, int half, int position) const {
        return load_codes4(signed_codes(keys_) + (d + 4 * half) * kPageTokens + position * 4);
    }
    // Elements d to d + 15 of the values of four positions, from `position` on, a multiple of 8, or
    // in the upper half from position + 4 on.
    Signed4 value_codes(int position, int half, int d) const {
        return load_signed4(signed_codes(values_) + (position + 4 * half) * head_dim_ + d * 4);
    }
    // What sums of products begin with: of keys with codes of that sum, and of values with codes of
    // the weights of a page's positions.
    static I16 first_of_keys(int32_t sum) { return first_sum(sum); }
    static int32_t first_of_values(const int8_t*) { return 0; }

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
    static const int8_t* signed_codes(const uint8_t* codes) {
        return reinterpret_cast<const int8_t*>(codes);
    }
    // Codes of 32 values; returns d, NaN where a value is not finite.
    static float encode(const float* x, int8_t* codes) { return quantise_block(x, codes) / 127.0f; }
};

struct Q4Part : CodedPart<KvType::kQ4> {
    using CodedPart::CodedPart;

    // As in Q8Part. Loads give codes times two; -15 times the sum of the other codes does the rest.
    Doubled4 key_codes(int d, int half, int position) const {
        return load_doubled4(keys_ + d / 2 * kPageTokens + position * 4, half == 1);
    }
    Doubled4 value_codes(int position, int half, int d) const {
        return load_doubled4(values_ + position / 2 * head_dim_ + d * 4, half == 1);
    }
    static I16 first_of_keys(int32_t sum) { return splat_int(-15 * sum); }
    static int32_t first_of_values(const int8_t* weights) {
        return -15 * (sum_of_16(weights) + sum_of_16(weights + 16));
    }

    static void store_key(uint8_t* part, int head_dim, int position, const float* key) {
        alignas(64) float rotated[kWidestHead];
        rotate_head(key, head_dim, rotated);
        for (int d = 0; d < head_dim; d += kBlock) {
            int8_t codes[kBlock];
            store_scale(part, head_dim, d, position, encode(rotated + d, codes));
            for (int i = 0; i < kBlock; i += 8) {
                uint8_t* pairs = part + (d + i) / 2 * kPageTokens + position * 4;
                for (int j = 0; j < 4; ++j) pairs[j] = pair(codes[i + j], codes[i + j + 4]);
            }
        }
    }
    // The other half of a byte belongs to another position, and stays.
    static void store_value(uint8_t* part, int head_dim, int position, const float* value) {
        alignas(64) float rotated[kWidestHead];
        rotate_head(value, head_dim, rotated);
        uint8_t* values = part + half_bytes(head_dim);
        uint8_t* four = values + position / 8 * 4 * head_dim + position % 4;
        const bool upper = position % 8 >= 4;
        for (int d = 0; d < head_dim; d += kBlock) {
            int8_t codes[kBlock];
            store_scale(values, head_dim, d, position, encode(rotated + d, codes));
            for (int i = 0; i < kBlock; ++i) {
                uint8_t& both = four[(d + i) * 4];
                both = upper ? pair(both & 15, codes[i]) : pair(codes[i], both >> 4);
            }
        }
    }

  private:
    static uint8_t pair(int lower, int upper) { return static_cast<uint8_t>(lower | upper << 4); }
    // Codes of 32 values; returns d, NaN where a value is not finite. Rounding to the nearest may
    // leave the range by one at the ends.
    static float encode(const float* x, int8_t* codes) {
        const V16 low = load(x), high = load(x + 16);
        const float peak = peak_of(abs(low), abs(high));
        if (!(peak < __builtin_inff())) {
            std::memset(codes, 8, kBlock);
            return __builtin_nanf("");
        }
        const float steps = 8.0f / peak;
        const V16 inverse = splat(steps < __builtin_inff() ? steps : 0.0f);
        const auto code = [&](V16 v) {
            return max(splat(0.0f), min(splat(15.0f), v * inverse + splat(7.5f)));
        };
        store_int8(codes, code(low));
        store_int8(codes + 16, code(high));
        return peak / 16.0f;
    }
};

// Calls f with a null pointer to the type of the parts of keys and values.
template <typename F>
inline void with_part(KvType type, F f) {
    switch (type) {
        case KvType::kF16:
            return f(static_cast<F16Part*>(nullptr));
        case KvType::kQ8_0:
            return f(static_cast<Q8Part*>(nullptr));
        case KvType::kQ4:
            return f(static_cast<Q4Part*>(nullptr));
    }
}

}  // namespace
