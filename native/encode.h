// Quantises rows of floats: finds the codes and scales of blocks that represent them best.
//
// A part is the 16 or 32 values that have one scale. Sixteen parts are computed at a time, one in
// each lane, so no sum crosses lanes and all instruction levels give the same blocks. The error
// that is made small is the sum over a part of weight * (value - stored value) ** 2, with a weight
// for each column: its importance, or 1.
//
// A search tries several steps between codes. For the codes that follow from a step, the best scale
// (and minimum) has a closed form: least squares. docs/concepts/native.md has
// the errors beside those of llama.cpp.
#pragma once

#include "file_blocks.h"
#include "formats.h"
#include "simd.h"

namespace {

using namespace heddle;

constexpr int kLanes = 16;

// Values of sixteen parts: `x[i]` has value i of each.
struct Parts {
    int count;  // values of a part, 16 or 32
    V16 x[kBlock];
    V16 weight[kBlock];
};

// What parts are multiplied with and added to.
struct Fit {
    V16 scale;
    V16 minimum;
};

// A NaN becomes `low`.
inline V16 rounded_within(V16 a, V16 low, V16 high) {
    const V16 magic = splat(12582912.0f);  // 1.5 * 2**23: leaves no fraction, rounds ties to even
    return (min(max(a, low), high) + magic) - magic;
}

inline V16 inverse_or_zero(V16 a) {
    const V16 none = splat(0.0f);
    return select_less(none, abs(a), splat(1.0f) / a, none);
}

// Zero; NaN for parts with a value that is not finite.
inline V16 poison(const Parts& parts) {
    V16 sum = splat(0.0f);
    for (int i = 0; i < parts.count; ++i) sum = fma(parts.x[i], splat(0.0f), sum);
    return sum;
}

// The value of largest magnitude of each part.
inline V16 peak(const Parts& parts) {
    V16 found = splat(0.0f);
    for (int i = 0; i < parts.count; ++i) {
        found = select_less(abs(found), abs(parts.x[i]), parts.x[i], found);
    }
    return found;
}

// The scale of codes in [-half, half - 1]. The value of largest magnitude gets the code near -half.
inline V16 fit_signed(const Parts& parts, float half) {
    const V16 inverse_peak = inverse_or_zero(peak(parts));
    const V16 low = splat(-half), high = splat(half - 1.0f);
    V16 best = splat(0.0f), scale = splat(0.0f);
    for (int step = -9; step <= 9; ++step) {
        const V16 inverse = inverse_peak * splat(-half - 0.1f * static_cast<float>(step));
        V16 xq = splat(0.0f), qq = splat(0.0f);
        for (int i = 0; i < parts.count; ++i) {
            const V16 q = rounded_within(parts.x[i] * inverse, low, high);
            const V16 weighted = parts.weight[i] * q;
            xq = fma(weighted, parts.x[i], xq);
            qq = fma(weighted, q, qq);
        }
        const V16 found = xq / qq, gain = found * xq;  // by which the error falls
        scale = select_less(best, gain, found, scale);
        best = select_less(best, gain, gain, best);
    }
    return scale;
}

struct Sums {
    V16 w, x, xx;
};

inline Sums sums_of(const Parts& parts) {
    Sums sums = {splat(0.0f), splat(0.0f), splat(0.0f)};
    for (int i = 0; i < parts.count; ++i) {
        const V16 weighted = parts.weight[i] * parts.x[i];
        sums.w = sums.w + parts.weight[i];
        sums.x = sums.x + weighted;
        sums.xx = fma(weighted, parts.x[i], sums.xx);
    }
    return sums;
}

// Scale and minimum of codes in [0, top]; a scale is never negative. With `below_zero`, no minimum
// is above zero.
inline Fit fit_affine(const Parts& parts, float top, bool below_zero) {
    const V16 none = splat(0.0f), two = splat(2.0f);
    V16 low = parts.x[0], high = parts.x[0];
    for (int i = 1; i < parts.count; ++i) {
        low = min(parts.x[i], low);
        high = max(parts.x[i], high);
    }
    if (below_zero) low = min(low, none);
    const Sums sums = sums_of(parts);
    const V16 range = high - low, inverse_range = inverse_or_zero(range);
    Fit best = {range * splat(1.0f / top), low};
    V16 least = splat(__builtin_inff());
    for (int step = -10; step <= 10; ++step) {
        const V16 inverse = inverse_range * splat(top + 0.1f * static_cast<float>(step));
        V16 q1 = none, qq = none, xq = none;
        for (int i = 0; i < parts.count; ++i) {
            const V16 q = rounded_within((parts.x[i] - low) * inverse, none, splat(top));
            const V16 weighted = parts.weight[i] * q;
            q1 = q1 + weighted;
            qq = fma(weighted, q, qq);
            xq = fma(weighted, parts.x[i], xq);
        }
        const V16 determinant = sums.w * qq - q1 * q1;
        V16 scale = (sums.w * xq - sums.x * q1) / determinant;
        V16 minimum = (qq * sums.x - q1 * xq) / determinant;
        if (below_zero) {
            scale = select_less(none, minimum, xq / qq, scale);
            minimum = min(minimum, none);
        }
        scale = max(scale, none);
        const V16 squares = sums.xx + scale * scale * qq + minimum * minimum * sums.w;
        const V16 products = scale * minimum * q1 - scale * xq - minimum * sums.x;
        // Where all codes are equal there is no one best scale: the step above stays.
        const V16 least_determinant = sums.w * qq * splat(1e-6f);
        const V16 error = select_less(least_determinant, determinant, squares + two * products,
                                      splat(__builtin_inff()));
        best.scale = select_less(error, least, scale, best.scale);
        best.minimum = select_less(error, least, minimum, best.minimum);
        least = select_less(error, least, error, least);
    }
    return best;
}

// What encoders need of a type's shape. (A function of `Layout` that is not inlined would be one
// for all instruction levels.)
struct Shape {
    Scale scale;
    int blocks;  // of a super-block
    int parts;   // of a block
    int bits;    // of a code
    int offset;
    bool minimum;

    float top() const { return static_cast<float>((1 << bits) - 1); }
};

// f16 and back. `bits` gets the f16.
inline V16 through_half(V16 a, uint16_t (&bits)[kLanes]) {
    store_f16(bits, a);
    return load_f16(bits);
}

// Writes round((x - minimum) / scale) + offset, within [0, top], as codes of the lanes' parts.
inline void write_codes(const Parts& parts, const Fit& fit, float offset, float top,
                        uint8_t* const (&codes)[kLanes]) {
    const V16 inverse = inverse_or_zero(fit.scale);
    float lanes[kLanes];
    for (int i = 0; i < parts.count; ++i) {
        const V16 q = (parts.x[i] - fit.minimum) * inverse;
        const V16 least = splat(-offset);
        store(lanes, rounded_within(q, least, splat(top - offset)) - least);
        for (int lane = 0; lane < kLanes; ++lane) {
            codes[lane][i] = static_cast<uint8_t>(lanes[lane]);
        }
    }
}

// --- types with an f16 for each part
// ---------------------------------------------------------------

inline void encode_halves(const Shape& shape, const Parts& parts, FileBlock* const (&out)[kLanes],
                          uint8_t* const (&codes)[kLanes]) {
    const float top = shape.top();
    const float offset = static_cast<float>(shape.offset);
    Fit fit = {splat(0.0f), splat(0.0f)};
    if (shape.minimum) {
        fit = fit_affine(parts, top, false);
    } else if (shape.bits == 8) {
        fit.scale = abs(peak(parts)) * splat(1.0f / 127.0f);  // a search gains nothing
    } else {
        fit.scale = fit_signed(parts, offset);
    }
    uint16_t scale[kLanes], minimum[kLanes];
    fit.scale = through_half(fit.scale + poison(parts), scale);
    fit.minimum = through_half(fit.minimum, minimum);
    write_codes(parts, fit, offset, top, codes);
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane]->scale = scale[lane];
        out[lane]->minimum = shape.minimum ? minimum[lane] : 0;
    }
}

// --- super-blocks
// ----------------------------------------------------------------------------------

// The step of whole numbers in [low, high] that represents the values of `parts` parts best, by the
// same search as `fit_signed`.
inline float shared_step(const float* values, const float* weights, int parts, float low,
                         float high) {
    float most = 0.0f, poison = 0.0f;
    for (int i = 0; i < parts; ++i) {
        if (__builtin_fabsf(values[i]) > __builtin_fabsf(most)) most = values[i];
        poison += values[i] * 0.0f;
    }
    const float end = low < 0.0f ? low : high;  // the value of largest magnitude gets about this
    float best = 0.0f, step = most / end;
    for (int i = -9; i <= 9 && most != 0.0f; ++i) {
        const float inverse = (end + 0.1f * static_cast<float>(i)) / most;
        float xq = 0.0f, qq = 0.0f;
        for (int k = 0; k < parts; ++k) {
            const float scaled = values[k] * inverse;
            const float within = scaled < low ? low : scaled < high ? scaled : high;
            const float q = (within + 12582912.0f) - 12582912.0f;
            xq += weights[k] * values[k] * q;
            qq += weights[k] * q * q;
        }
        if (xq * xq > best * qq) {
            best = xq * xq / qq;
            step = xq / qq;
        }
    }
    return step + poison;  // NaN if a value is not finite
}

// Scales of parts as whole numbers in [low, high] times an f16 for each super-block of `parts`
// lanes. `values` become what is stored. `bits` gets the f16, `whole` the numbers.
inline void share_scales(float (&values)[kLanes], const float (&weights)[kLanes], int parts,
                         float low, float high, uint16_t (&bits)[kLanes], float (&whole)[kLanes]) {
    float steps[kLanes];
    for (int first = 0; first < kLanes; first += parts) {
        const float step = shared_step(values + first, weights + first, parts, low, high);
        for (int i = first; i < first + parts; ++i) steps[i] = step;
    }
    const V16 d = through_half(load(steps), bits);
    const V16 q = rounded_within(load(values) * inverse_or_zero(d), splat(low), splat(high));
    store(whole, q);
    store(values, d * q);
}

// Two super-blocks of eight parts with scales and minima (Q4_K, Q5_K).
inline void encode_pairs(const Shape& shape, const Parts& parts, FileBlock* const (&out)[kLanes],
                         uint8_t* const (&codes)[kLanes]) {
    const float top = shape.top();
    Fit fit = fit_affine(parts, top, true);
    float scales[kLanes], minima[kLanes], weights[kLanes];
    float whole_scales[kLanes], whole_minima[kLanes];
    uint16_t d[kLanes], m[kLanes];
    store(scales, fit.scale + poison(parts));
    store(minima, splat(0.0f) - fit.minimum);
    store(weights, sums_of(parts).w);
    share_scales(scales, weights, shape.blocks, 0.0f, 63.0f, d, whole_scales);
    share_scales(minima, weights, shape.blocks, 0.0f, 63.0f, m, whole_minima);
    write_codes(parts, {load(scales), splat(0.0f) - load(minima)}, 0.0f, top, codes);
    for (int lane = 0; lane < kLanes; ++lane) {
        FileBlock& block = *out[lane];
        block.scale = d[lane];
        block.minimum = m[lane] ^ 0x8000;
        block.scales[lane % shape.blocks] = static_cast<uint8_t>(whole_scales[lane]);
        block.minima[lane % shape.blocks] = static_cast<uint8_t>(whole_minima[lane]);
    }
}

// One super-block of sixteen parts with signed scales (Q6_K).
inline void encode_signed(const Shape& shape, const Parts& parts, FileBlock* const (&out)[kLanes],
                          uint8_t* const (&codes)[kLanes]) {
    const float top = shape.top();
    const float offset = static_cast<float>(shape.offset);
    float scales[kLanes], weights[kLanes], whole[kLanes];
    uint16_t d[kLanes];
    store(scales, fit_signed(parts, offset) + poison(parts));
    store(weights, sums_of(parts).w);
    share_scales(scales, weights, kLanes, -128.0f, 127.0f, d, whole);
    write_codes(parts, {load(scales), splat(0.0f)}, offset, top, codes);
    out[0]->scale = d[0];
    for (int lane = 0; lane < kLanes; ++lane) {
        out[0]->scales[lane] = static_cast<uint8_t>(static_cast<int>(whole[lane]));
    }
}

// --- MXFP4
// -----------------------------------------------------------------------------------------

// The nearest of E2M1's magnitudes, doubled: 0 1 2 3 4 6 8 12.
inline V16 nearest_e2m1(V16 a) {
    const V16 none = splat(0.0f), most = splat(12.0f);
    const V16 y = min(max(a, none), most);
    const V16 ones = rounded_within(y, none, most);
    const V16 twos = splat(2.0f) * rounded_within(y * splat(0.5f), none, most);
    const V16 fours = splat(4.0f) * rounded_within(y * splat(0.25f), none, most);
    return select_less(y, splat(4.0f), ones, select_less(y, splat(8.0f), twos, fours));
}

inline void encode_mxfp4(const Parts& parts, FileBlock* const (&out)[kLanes],
                         uint8_t* const (&codes)[kLanes]) {
    constexpr uint16_t kOne = 0x3C00, kNaN = 0x7E00;
    constexpr uint8_t kCodes[13] = {0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7};
    float peaks[kLanes], halves[2][kLanes];  // of the scale, for two exponents
    uint8_t exponents[kLanes];
    store(peaks, abs(peak(parts)) + poison(parts));
    for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t bits;
        std::memcpy(&bits, &peaks[lane], 4);
        // 6, the largest magnitude, is 1.5 * 2 ** 2.
        const int e = static_cast<int>(bits >> 23 & 255) - 2;
        exponents[lane] = static_cast<uint8_t>(e < 2 ? 2 : e > 252 ? 252 : e);
        for (int up = 0; up < 2; ++up) {
            const uint32_t half = static_cast<uint32_t>(exponents[lane] + up - 1) << 23;
            std::memcpy(&halves[up][lane], &half, 4);
        }
    }
    V16 errors[2] = {splat(0.0f), splat(0.0f)};
    for (int up = 0; up < 2; ++up) {
        const V16 half = load(halves[up]), inverse = splat(1.0f) / half;
        for (int i = 0; i < parts.count; ++i) {
            const V16 size = abs(parts.x[i]);
            const V16 off = size - half * nearest_e2m1(size * inverse);
            errors[up] = fma(parts.weight[i] * off, off, errors[up]);
        }
    }
    float is_upper[kLanes];
    store(is_upper, select_less(errors[1], errors[0], splat(1.0f), splat(0.0f)));
    const V16 half = select_less(errors[1], errors[0], load(halves[1]), load(halves[0]));
    const V16 inverse = splat(1.0f) / half;
    for (int i = 0; i < parts.count; ++i) {
        float sizes[kLanes], values[kLanes];
        store(sizes, nearest_e2m1(abs(parts.x[i]) * inverse));
        store(values, parts.x[i]);
        for (int lane = 0; lane < kLanes; ++lane) {
            const int sign = values[lane] < 0.0f ? 8 : 0;
            codes[lane][i] = static_cast<uint8_t>(kCodes[static_cast<int>(sizes[lane])] | sign);
        }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        const bool finite = peaks[lane] < __builtin_inff();
        out[lane]->scale = finite ? kOne : kNaN;
        out[lane]->scales[0] =
            finite ? static_cast<uint8_t>(exponents[lane] + (is_upper[lane] > 0.0f)) : 255;
    }
}

// --- rows
// ------------------------------------------------------------------------------------------

void encode_row(const Shape& shape, const float* x, const float* importance, int blocks,
                FileBlock* out) {
    const int in_block = shape.blocks * shape.parts;  // parts
    Parts parts;
    parts.count = kBlock / shape.parts;
    FileBlock unused;  // of lanes past the end
    for (int first = 0; first < blocks; first += kLanes / in_block) {
        FileBlock* targets[kLanes];
        uint8_t* codes[kLanes];
        float values[kBlock][kLanes] = {}, weights[kBlock][kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
            const int block = first + lane / in_block, part = lane % in_block;
            const bool used = block < blocks;
            targets[lane] = used ? out + block : &unused;
            codes[lane] = targets[lane]->codes + part * parts.count;
            const int64_t at = (int64_t{block} * in_block + part) * parts.count;
            for (int i = 0; i < parts.count; ++i) {
                if (used) values[i][lane] = x[at + i];
                weights[i][lane] = used && importance ? importance[at + i] : 1.0f;
            }
        }
        for (int i = 0; i < parts.count; ++i) {
            parts.x[i] = load(values[i]);
            parts.weight[i] = load(weights[i]);
        }
        switch (shape.scale) {
            case Scale::kHalf:
                encode_halves(shape, parts, targets, codes);
                break;
            case Scale::kE8M0:
                encode_mxfp4(parts, targets, codes);
                break;
            case Scale::kUint8:
                encode_pairs(shape, parts, targets, codes);
                break;
            default:
                encode_signed(shape, parts, targets, codes);
        }
    }
}

// Finds the format's row and encodes for its layout.
template <size_t Row = 0>
void encode(Format format, const float* x, const float* importance, int blocks, FileBlock* out) {
    if constexpr (Row < sizeof(kFormats) / sizeof(kFormats[0])) {
        constexpr FormatRow kRow = kFormats[Row];
        if constexpr (kRow.write.exists) {
            constexpr Layout L = kRow.layout;
            if (kRow.format == format) {
                const Shape shape = {L.scale, L.blocks, L.parts, L.bits(), L.offset, L.minimum};
                return encode_row(shape, x, importance, blocks, out);
            }
        }
        encode<Row + 1>(format, x, importance, blocks, out);
    }
}

}  // namespace
