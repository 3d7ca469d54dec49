// Compares every kernel of every instruction level that this machine runs with the portable one,
// bit for bit, on random data from fixed seeds.
//
//   levels [LEVEL...]    fails too where a LEVEL that is named does not run here
//
// Prints, by kernel, a hash of what the portable level computed: it must be the same on every
// machine. Nothing here calls the C library's mathematics, which differs between machines.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "comparison.h"
#include "file_blocks.h"
#include "kernels.h"
#include "line_floats.h"
#include "simd.h"
#include "storage.h"
#include "tiles.h"

using namespace heddle;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kMostTokens = 70;

// Values of a trained model's size.
constexpr float kLeast = 0.001f, kMost = 1.0f;

float float_at(const uint8_t* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
}

float value_of(Format format, const uint8_t* p) {
    if (format == Format::kF16) return half_to_float(half_bits(p));
    if (format == Format::kBF16) return bits_float(uint32_t{half_bits(p)} << 16);
    return float_at(p);
}

// The largest magnitude among a block's values; infinity if one is not finite.
float peak_of(const FormatRow& row, const uint8_t* bytes) {
    float values[256] = {};
    if (is_quantised(row.format)) {
        FileBlock block;
        read_block(row.format, bytes, block);
        dequantise_block(row.format, block, values);
    } else if (row.format == Format::kF8E4M3) {
        for (int k = 0; k < row.layout.run; ++k)
            values[k] = float_of_e4m3(bytes[4 + k]) * float_at(bytes);
    } else if (row.format == Format::kI8) {
        values[0] = static_cast<float>(static_cast<int8_t>(bytes[0])) / 128.0f;  // of the largest
    } else {
        values[0] = value_of(row.format, bytes);
    }
    float peak = 0.0f;
    for (float x : values) peak = std::isfinite(x) ? std::max(peak, std::fabs(x)) : kInfinity;
    return peak;
}

// Random bytes, drawn until they are a block with values of a trained model's size: so no test
// needs to know where a format keeps its scales.
void random_block(Random& random, const FormatRow& row, uint8_t* bytes) {
    float peak = kInfinity;
    while (peak < kLeast || peak > kMost) {
        for (int i = 0; i < row.file_bytes; ++i) bytes[i] = static_cast<uint8_t>(random.bits());
        peak = peak_of(row, bytes);
    }
}

// A matrix as a file holds it.
std::vector<uint8_t> random_matrix(Random& random, const FormatRow& row, int rows, int columns) {
    std::vector<uint8_t> raw(static_cast<size_t>(rows * row_bytes(row.format, columns)));
    const auto width = static_cast<size_t>(row.file_bytes);
    for (size_t at = 0; at < raw.size(); at += width) random_block(random, row, &raw[at]);
    return raw;
}

struct Quantised {
    std::vector<int8_t> q;
    std::vector<BlockScale> scales;
};

Quantised quantise(const Kernels& kernels, const Floats& x) {
    Quantised quantised{std::vector<int8_t>(x.size()),
                        std::vector<BlockScale>(x.size() / kBlock, BlockScale{})};
    kernels.quantise(x.data(), static_cast<int>(x.size()), quantised.q.data(),
                     quantised.scales.data());
    return quantised;
}

// One matrix, one set of activations.
struct MatmulCase {
    Format format;
    std::vector<uint8_t> raw;
    int rows, columns;
    int least = 1, most = kMostTokens;  // tokens
    Floats x, bias, onto;               // bias and onto may be empty
    Quantised xq;
    LineFloats scratch;
    LineBytes packed;
    int stride() const { return rows + 3; }

    // The output of the first `tokens` tokens, gaps between rows included. The panels are taken in
    // two calls, as two threads would.
    Floats run(const Kernels& kernels, const Matrix& matrix, int tokens) {
        Floats out(static_cast<size_t>(tokens * stride()), -1.0f);
        if (!onto.empty()) std::copy_n(onto.begin(), out.size(), out.begin());
        MatmulArgs args = {};
        args.w = &matrix.packed();
        args.xq = {xq.q.data(), xq.scales.data(), columns};
        args.x = x.data();
        args.x_stride = columns;
        args.out = out.data();
        args.out_stride = stride();
        args.accumulate = !onto.empty();
        args.tokens = tokens;
        if (is_quantised(format) && kernels.packs_from > 0 && tokens >= kernels.packs_from) {
            packed.resize(static_cast<size_t>(packed_bytes(tokens, columns / kBlock)));
            for (int i = 0; i < tiles_of(tokens, kernels.tile_tokens); ++i) {
                kernels.pack(args.xq, columns, tokens, i, packed.data());
            }
            args.packed = {packed.data(), columns / kBlock, 0};
        }
        scratch.resize(kMatmulScratch / sizeof(float));
        args.scratch = reinterpret_cast<uint8_t*>(scratch.data());
        args.last_panel = matrix.panels() / 2;
        kernels.matmul(args);
        args.first_panel = args.last_panel;
        args.last_panel = matrix.panels();
        kernels.matmul(args);
        return out;
    }
};

// Compares matmuls of c.least to c.most tokens.
void compare_matmul(Check& check, MatmulCase& c) {
    ThreadPool pool(1);
    Arena arena;
    const Matrix reference(arena, pool, *portable_kernels(), c.format, TensorBytes(c.raw.data()),
                           c.rows, c.columns, c.bias);
    const Floats expected = c.run(*portable_kernels(), reference, c.most);
    check.take(expected);
    for (const Kernels* level : fast_levels()) {
        const Matrix matrix(arena, pool, *level, c.format, TensorBytes(c.raw.data()), c.rows,
                            c.columns, c.bias);
        for (int tokens = c.least; tokens <= c.most; ++tokens) {
            const Floats found = c.run(*level, matrix, tokens);
            check.same(*level,
                       text("rows", c.rows) + text("columns", c.columns) + text("tokens", tokens),
                       expected.data(), found.data(), found.size());
        }
    }
}

MatmulCase matmul_case(Random& random, const FormatRow& row, int rows, int columns, bool bias,
                       bool accumulate, int most = kMostTokens) {
    MatmulCase c;
    c.most = most;
    c.format = row.format;
    c.rows = rows;
    c.columns = columns;
    c.raw = random_matrix(random, row, rows, columns);
    c.x = random.activations(int64_t{most} * columns);
    if (is_quantised(row.format)) c.xq = quantise(*portable_kernels(), c.x);
    if (bias) c.bias = random.normals(rows, 1.0f);
    if (accumulate) c.onto = random.normals(int64_t{most} * c.stride(), 1.0f);
    return c;
}

void check_matmul(const FormatRow& row) {
    Check check(std::string("matmul ") + row.name);
    Random random(static_cast<uint64_t>(row.format) + 1);
    const int unit = row.layout.columns();
    int number = 0;
    for (int rows : {1, 8, 19, 36}) {
        for (int units : {1, 2, 3}) {
            const int columns = unit == 1 ? 33 * units - 32 : unit * units;
            MatmulCase c = matmul_case(random, row, rows, columns, number & 1, number & 2);
            compare_matmul(check, c);
            ++number;
        }
    }
}

// More tokens, panels and columns than are multiplied together; one format of each SliceShape.
void check_long_matmul(const FormatRow& row) {
    const std::string name = row.name;
    if (name != "Q8_0" && name != "Q4_1" && name != "Q6_K" && name != "Q2_K" && name != "MXFP4") {
        return;
    }
    Check check("long matmul " + name);
    Random random(3);
    const int unit = row.layout.columns();
    const int columns = kSliceColumns + (300 + unit) / unit * unit;
    const int rows = 16 * kSlicePanels + 20;
    MatmulCase c = matmul_case(random, row, rows, columns, true, false, kTokenBlock + 44);
    c.least = c.most;
    compare_matmul(check, c);
}

// Gives `byte` to all bytes of a block but those that its values' size depends on, its scales.
void fill_codes(const FormatRow& row, int byte, uint8_t* bytes) {
    for (int i = 0; i < row.file_bytes; ++i) {
        const uint8_t before = bytes[i];
        bytes[i] = static_cast<uint8_t>(byte);
        const float peak = peak_of(row, bytes);
        if (peak < kLeast || peak > 16 * kMost) bytes[i] = before;
    }
}

// All codes and all activations at their largest: sums of products must hold them.
void check_extreme_codes(const FormatRow& row) {
    if (!is_quantised(row.format)) return;
    Check check(std::string("extreme ") + row.name);
    Random random(2);
    const int columns = 2 * row.layout.columns();
    for (int byte : {0x00, 0x7F, 0x80, 0xFF}) {
        for (float activation : {127.0f, -127.0f}) {
            MatmulCase c = matmul_case(random, row, 16, columns, false, false);
            const auto width = static_cast<size_t>(row.file_bytes);
            for (size_t at = 0; at < c.raw.size(); at += width) fill_codes(row, byte, &c.raw[at]);
            std::fill(c.x.begin(), c.x.end(), activation);
            c.xq = quantise(*portable_kernels(), c.x);
            compare_matmul(check, c);
        }
    }
}

// Every f16 as a weight that is multiplied by one.
void check_halves() {
    Check check("f16 to float");
    MatmulCase c;
    c.format = Format::kF16;
    c.rows = 0x7C01;  // zero to infinity
    c.columns = 1;
    c.x.assign(kMostTokens, 1.0f);
    for (int half = 0; half < c.rows; ++half) {
        c.raw.push_back(static_cast<uint8_t>(half));
        c.raw.push_back(static_cast<uint8_t>(half >> 8));
    }
    ThreadPool pool(1);
    check.all_levels("every value", [&](const Kernels& k) {
        Arena arena;
        const Matrix matrix(arena, pool, k, c.format, TensorBytes(c.raw.data()), c.rows, c.columns,
                            {});
        return c.run(k, matrix, 1);
    });
}

void check_quantise() {
    Check check("quantise");
    Random random(3);
    Floats x = random.activations(64 * kBlock);
    const auto block = [&](int index) { return x.begin() + index * kBlock; };
    std::fill(block(1), block(2), 0.0f);
    std::fill(block(2), block(3), -0.0f);
    std::fill(block(3), block(4), 1e-41f);  // 127 / peak is infinite
    std::fill(block(4), block(5), 3e38f);
    for (int i = 0; i < kBlock; ++i) block(5)[i] = 127.0f - 0.5f * static_cast<float>(i);  // ties
    for (int i = 0; i < kBlock; ++i) block(6)[i] = 1e-37f * static_cast<float>(i);
    for (int i = 0; i < kBlock; ++i) {  // one value that is not finite, at every place of a block
        block(7 + i)[i] = i % 3 == 0 ? std::nanf("") : i % 3 == 1 ? kInfinity : -kInfinity;
    }
    check.expect("non-finite", [&](const Kernels& k) {
        const Quantised found = quantise(k, x);
        for (int b = 7; b < 7 + kBlock; ++b) {
            const BlockScale& scale = found.scales[static_cast<size_t>(b)];
            if (scale.d == scale.d || scale.s == scale.s) return false;
            if (scale.start != kZeroBits || scale.minus_half_sum[0] != 0) return false;
            for (float half : scale.half_s) {
                if (half == half) return false;
            }
        }
        return true;
    });
    for (int blocks : {1, 2, 7, 64}) {
        const Floats part(x.begin(), block(blocks));
        check.all_levels(text("blocks", blocks) + "codes",
                         [&](const Kernels& k) { return quantise(k, part).q; });
        check.all_levels(text("blocks", blocks) + "scales",
                         [&](const Kernels& k) { return quantise(k, part).scales; });
    }
}

// x and y to an equally long output.
void check_elementwise(const char* name,
                       void (*run)(const Kernels&, const Floats& x, const Floats& y, float* out)) {
    Check check(name);
    Random random(4);
    for (int n = 1; n <= 1100; n += n < 70 ? 1 : 97) {
        const Floats x = random.normals(n, 4.0f), y = random.activations(n);
        check.all_levels(text("n", n), [&](const Kernels& k) {
            Floats out(x.size());
            run(k, x, y, out.data());
            return out;
        });
    }
}

int size(const Floats& x) { return static_cast<int>(x.size()); }

template <Activation A>
void gated(const Kernels& k, const Floats& gate, const Floats& up, float* out) {
    k.gated[static_cast<int>(A)](gate.data(), up.data(), size(gate), out);
}

void check_rows() {
    check_elementwise("norm", [](const Kernels& k, const Floats& x, const Floats& w, float* out) {
        k.norm(x.data(), w.data(), size(x), 1e-6f, out);
    });
    check_elementwise("layer_norm",
                      [](const Kernels& k, const Floats& x, const Floats& w, float* out) {
                          k.layer_norm(x.data(), w.data(), x.data(), size(x), 1e-6f, out);
                      });
    check_elementwise("gelu", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        k.map[static_cast<int>(Map::kGelu)](x.data(), size(x), out);
    });
    check_elementwise("gelu_erf", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        k.map[static_cast<int>(Map::kGeluErf)](x.data(), size(x), out);
    });
    check_elementwise("gated gelu_erf", gated<Activation::kGeluErf>);
    check_elementwise("gated silu", gated<Activation::kSilu>);
    check_elementwise("gated gelu", gated<Activation::kGelu>);
    check_elementwise("gated clamped", gated<Activation::kClamped>);
    check_elementwise("gated silu_to_7", gated<Activation::kSiluTo7>);
    check_elementwise("gated silu_to_16", gated<Activation::kSiluTo16>);
    check_elementwise("add_scaled",
                      [](const Kernels& k, const Floats& x, const Floats& y, float* out) {
                          std::copy(y.begin(), y.end(), out);
                          k.add_scaled(x.data(), 0.7f, size(x), out);
                      });
    check_elementwise("add", [](const Kernels& k, const Floats& x, const Floats& y, float* out) {
        k.add(x.data(), y.data(), size(x), out);
    });
    check_elementwise("scale", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        k.scale(x.data(), 0.7f, size(x), out);
    });
    check_elementwise("soft_cap", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        k.soft_cap(x.data(), 1.3f, size(x), out);
    });
    check_elementwise("dot", [](const Kernels& k, const Floats& x, const Floats& y, float* out) {
        *out = k.dot(x.data(), y.data(), size(x));
    });
    check_elementwise("max", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        *out = k.max(x.data(), size(x));
    });
    check_elementwise("sum_exp", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        *out = k.sum_exp(x.data(), size(x), 5.0f, 1.3f);
    });
    check_elementwise("exp_all", [](const Kernels& k, const Floats& x, const Floats&, float* out) {
        k.exp_all(x.data(), size(x), 5.0f, 1.3f, out);
    });
}

// The whole range of exp and of what is built on it, the ends included.
void check_exp() {
    Check check("exp");
    Floats x = {0.0f,  -0.0f, 1e-45f,      -1e-45f,     kInfinity,   -kInfinity,
                88.4f, 89.0f, -87.336544f, -87.336537f, -87.336552f, -3e38f};
    for (int i = -120 * 64; i <= 100 * 64; ++i) x.push_back(static_cast<float>(i) / 64.0f);
    const Floats ones(x.size(), 1.0f);
    check.all_levels("exp_all", [&](const Kernels& k) {
        Floats out(x.size());
        k.exp_all(x.data(), size(x), 0.0f, 1.0f, out.data());
        return out;
    });
    x.resize(4);  // silu and gelu of infinities are not numbers
    for (int i = -120 * 64; i <= 100 * 64; ++i) x.push_back(static_cast<float>(i) / 64.0f);
    for (const auto gate :
         {gated<Activation::kSilu>, gated<Activation::kGelu>, gated<Activation::kClamped>}) {
        check.all_levels("gated", [&](const Kernels& k) {
            Floats out(x.size());
            gate(k, x, ones, out.data());
            return out;
        });
    }
}

// `variant`: causal attention, the same with capped scores and sinks, or attention to both sides,
// or this with a bias by distance, or causal attention to runs.
enum class Variant { kCausal, kCappedWithSinks, kBothSides, kBiased, kAligned };
struct AttendCase {
    int tokens, first_position, group, head_dim, window;
    Variant variant = Variant::kCausal;
};
constexpr AttendCase kAttendCases[] = {
    {1, 0, 1, 16, 0},
    {70, 0, 3, 64, 0},
    {5, 250, 2, 80, 0},
    {1, 600, 3, 64, 0},
    {2, 511, 4, 128, 0},
    {33, 300, 1, 48, 100},
    {1, 1000, 8, 64, 257},
    {9, 40, 2, 256, 17},
    {7, 255, 7, 32, 0},
    {1, 777, 6, 16, 1},
    {4, 530, 1, 512, 300},
    {1, 90, 5, 64, 33},
    {40, 230, 9, 96, 0},
    {3, 1023, 2, 64, 512},
    {1, 600, 3, 64, 0, Variant::kCappedWithSinks},
    {33, 300, 2, 48, 100, Variant::kCappedWithSinks},
    {45, 0, 3, 64, 0, Variant::kBothSides},
    {300, 0, 2, 32, 40, Variant::kBothSides},
    {300, 0, 2, 32, 0, Variant::kBiased},
    {70, 230, 2, 64, 40, Variant::kAligned},
    {3, 1022, 2, 64, 512, Variant::kAligned},
    {1, 700, 3, 32, 300, Variant::kAligned},
};

const char* name_of(KvType type) {
    constexpr const char* kNames[] = {"f16", "q8_0", "q4"};
    return kNames[static_cast<int>(type)];
}

// A sequence's pages of one key/value head, out of order and with foreign ones between. What no
// token was stored in is finite, as in a cache.
struct Pages {
    KvType type;
    std::vector<uint8_t> kv;
    std::vector<int32_t> table;
    int64_t stride;
};

Pages random_pages(Random& random, KvType type, int positions, int head_dim) {
    Pages pages = {type, {}, {}, kv_part_bytes(type, head_dim) + 64};
    const int count = (positions + kPageTokens - 1) / kPageTokens;
    pages.kv.resize(static_cast<size_t>(pages.stride * count * 2));
    for (int i = 0; i < count; ++i) pages.table.push_back(2 * (count - 1 - i) + 1);
    for (int page = 0; page < 2 * count; ++page) {
        const Floats k = random.normals(int64_t{kPageTokens} * head_dim, 1.0f);
        const Floats v = random.normals(int64_t{kPageTokens} * head_dim, 1.0f);
        uint8_t* part = pages.kv.data() + page * pages.stride;
        portable_kernels()->store_kv(
            {k.data(), v.data(), head_dim, type, part, head_dim, 0, kPageTokens});
    }
    return pages;
}

// The whole call, or the splits one by one and their merge.
Floats attend(const Kernels& kernels, const AttendCase& c, const Pages& pages, const Floats& q,
              bool in_splits) {
    const int stride = c.group * c.head_dim + 16;
    Floats out(q.size(), -1.0f);
    Floats scratch(static_cast<size_t>(attend_scratch(c.head_dim)), -1.0f);
    AttendArgs args = {};
    args.q = q.data();
    args.q_stride = stride;
    args.out = out.data();
    args.out_stride = stride;
    args.kv_type = pages.type;
    args.kv = pages.kv.data();
    args.page_stride = pages.stride;
    args.pages = pages.table.data();
    args.tokens = c.tokens;
    args.first_position = c.first_position;
    args.group = c.group;
    args.head_dim = args.value_dim = c.head_dim;
    args.window = c.window;
    args.aligned = c.variant == Variant::kAligned;
    args.last_position = c.first_position + c.tokens - 1;
    args.causal = c.variant != Variant::kBothSides && c.variant != Variant::kBiased;
    args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    constexpr float kSinks[] = {-3.0f, 0.7f, 120.0f};
    if (c.variant == Variant::kCappedWithSinks) {
        args.soft_cap = 2.5f;
        args.sinks = kSinks;
    }
    Floats bias;  // of -(tokens - 1) and on, with lanes of padding
    if (c.variant == Variant::kBiased) {
        args.bias_stride = 2 * c.tokens + 16;
        for (int i = 0; i < c.group * args.bias_stride; ++i) {
            bias.push_back(static_cast<float>(i % 37) * -0.25f);
        }
        args.bias = bias.data() + c.tokens - 1;
    }
    args.scratch = scratch.data();
    if (!in_splits) {
        kernels.attend(args);
        return out;
    }
    const int seen = first_seen(c.first_position, c.window, c.variant == Variant::kAligned);
    const int splits = (c.first_position + c.tokens - 1) / kSplitTokens + 1;
    const int64_t part = attend_part(c.tokens * c.group, c.head_dim);
    Floats parts(static_cast<size_t>(splits * part), -1.0f);
    for (int split = seen / kSplitTokens; split < splits; ++split) {
        kernels.attend_split(args, split, parts.data() + split * part);
    }
    kernels.attend_merge(args, parts.data());
    return out;
}

void check_attend(KvType type) {
    Check check(std::string("attend ") + name_of(type));
    Random random(5);
    for (const AttendCase& c : kAttendCases) {
        if (type != KvType::kF16 && c.head_dim % kBlock != 0) continue;
        const Pages pages = random_pages(random, type, c.first_position + c.tokens, c.head_dim);
        const Floats q = random.normals(int64_t{c.tokens} * (c.group * c.head_dim + 16), 2.0f);
        const std::string what = text("tokens", c.tokens) + text("from", c.first_position) +
                                 text("group", c.group) + text("head_dim", c.head_dim) +
                                 text("window", c.window) +
                                 text("variant", static_cast<int>(c.variant));
        check.all_levels(what, [&](const Kernels& k) { return attend(k, c, pages, q, false); });
        if (c.tokens * c.group > kAttendQueries) continue;
        const Floats whole = attend(*portable_kernels(), c, pages, q, false);
        check.all_levels(what + "in splits", [&](const Kernels& k) {
            const Floats merged = attend(k, c, pages, q, true);
            check.same(k, what + "merged", whole.data(), merged.data(), whole.size());
            return merged;
        });
    }
}

struct LatentCase {
    int tokens, first_position, group, rank, rest;
};
constexpr LatentCase kLatentCases[] = {
    {1, 0, 1, 16, 16},   {45, 0, 3, 48, 16},   {5, 250, 8, 96, 32},  {1, 600, 8, 512, 64},
    {2, 511, 5, 64, 64}, {33, 300, 1, 80, 48}, {1, 1023, 7, 32, 32}, {9, 40, 4, 176, 16},
};

// The whole call, or the splits one by one and their merge. A head of `turned` begins with elements
// that are not rotated.
Floats attend_latents(const Kernels& kernels, const LatentCase& c, const Pages& pages,
                      const Floats& q, const Floats& turned, bool in_splits) {
    Floats out(static_cast<size_t>(c.tokens * c.group * c.rank), -1.0f);
    Floats scratch(static_cast<size_t>(attend_scratch(c.rank)), -1.0f);
    AttendArgs args = {};
    args.q = q.data();
    args.q_stride = args.out_stride = c.group * c.rank;
    args.turned = turned.data() + 8;
    args.turned_head = c.rest + 8;
    args.turned_stride = c.group * args.turned_head;
    args.out = out.data();
    args.kv_type = pages.type;
    args.kv = pages.kv.data();
    args.page_stride = pages.stride;
    args.pages = pages.table.data();
    args.tokens = c.tokens;
    args.first_position = c.first_position;
    args.group = c.group;
    args.head_dim = c.rank + c.rest;
    args.value_dim = c.rank;
    args.causal = true;
    args.scale = 0.2f;
    args.scratch = scratch.data();
    if (!in_splits) {
        kernels.attend(args);
        return out;
    }
    const int splits = (c.first_position + c.tokens - 1) / kSplitTokens + 1;
    const int64_t part = attend_part(c.tokens * c.group, c.rank);
    Floats parts(static_cast<size_t>(splits * part), -1.0f);
    for (int split = 0; split < splits; ++split) {
        kernels.attend_split(args, split, parts.data() + split * part);
    }
    kernels.attend_merge(args, parts.data());
    return out;
}

// Pages stored by `kernels`, in two runs of tokens each.
Pages latent_pages(const Kernels& kernels, const LatentCase& c, KvType type, const Floats& latents,
                   const Floats& keys) {
    const int dim = c.rank + c.rest;
    Pages pages = {type, {}, {}, kv_part_bytes(type, dim, false)};
    const int count = static_cast<int>(latents.size()) / (kPageTokens * c.rank);
    pages.kv.resize(static_cast<size_t>(pages.stride * count));
    for (int page = 0; page < count; ++page) {
        pages.table.push_back(count - 1 - page);
        uint8_t* part = pages.kv.data() + (count - 1 - page) * pages.stride;
        for (const auto& [first, tokens] : {std::pair{0, 13}, std::pair{13, kPageTokens - 13}}) {
            const int at = page * kPageTokens + first;
            kernels.store_latents({&latents[static_cast<size_t>(at * c.rank)],
                                   &keys[static_cast<size_t>(at * c.rest)], c.rank, dim, type, part,
                                   first, tokens});
        }
    }
    return pages;
}

void check_latents(KvType type) {
    Check check(std::string("latents ") + name_of(type));
    Random random(9);
    for (const LatentCase& c : kLatentCases) {
        if (type == KvType::kQ8_0 && (c.rank + c.rest) % kBlock != 0) continue;
        const int positions = (c.first_position + c.tokens + kPageTokens - 1) / kPageTokens;
        const int64_t tokens = int64_t{positions} * kPageTokens, queries = c.tokens * c.group;
        const Floats latents = random.normals(tokens * c.rank, 1.0f);
        const Floats keys = random.normals(tokens * c.rest, 1.0f);
        const Floats q = random.normals(queries * c.rank, 1.0f);
        const Floats turned = random.normals(queries * (c.rest + 8), 1.0f);
        const std::string what = text("tokens", c.tokens) + text("from", c.first_position) +
                                 text("group", c.group) + text("rank", c.rank) +
                                 text("rest", c.rest);
        const auto pages = [&](const Kernels& k) {
            return latent_pages(k, c, type, latents, keys);
        };
        check.all_levels(what, [&](const Kernels& k) {
            return attend_latents(k, c, pages(k), q, turned, false);
        });
        if (c.tokens * c.group > kAttendQueries) continue;
        const Kernels& portable = *portable_kernels();
        const Floats whole = attend_latents(portable, c, pages(portable), q, turned, false);
        check.all_levels(what + "in splits", [&](const Kernels& k) {
            const Floats merged = attend_latents(k, c, pages(k), q, turned, true);
            check.same(k, what + "merged", whole.data(), merged.data(), whole.size());
            return merged;
        });
    }
}

// Every upper half of a float's bits, with lower halves next to where rounding to f16 turns: NaNs,
// infinities and subnormals too.
Floats awkward_floats() {
    Floats x;
    for (uint32_t upper = 0; upper < 0x10000; ++upper) {
        for (uint32_t lower : {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x8000, 0xFFFF}) {
            x.push_back(bits_float(upper << 16 | lower));
        }
    }
    return x;
}

// Pages stored in two runs of tokens; keys are the values from the other end.
void check_store_kv(KvType type) {
    Check check(std::string("store ") + name_of(type));
    Random random(7);
    constexpr int kHeadDim = 64, kFirst = 11;
    Floats values = awkward_floats();
    const Floats usual = random.activations(int64_t{kPageTokens} * kHeadDim * 4);
    values.insert(values.end(), usual.begin(), usual.end());
    const Floats keys(values.rbegin(), values.rend());
    for (int64_t at = 0; at < size(values); at += kPageTokens * kHeadDim) {
        check.all_levels(text("from", static_cast<int>(at)), [&](const Kernels& kernels) {
            std::vector<uint8_t> part(static_cast<size_t>(kv_part_bytes(type, kHeadDim)));
            const auto store = [&](int first, int tokens) {
                const int64_t begin = at + first * kHeadDim;
                kernels.store_kv({&keys[begin], &values[begin], kHeadDim, type, part.data(),
                                  kHeadDim, first, tokens});
            };
            store(0, kFirst);
            store(kFirst, kPageTokens - kFirst);
            return part;
        });
    }
}

// Embedding rows, unpacked from the panels of each level.
void check_dequantise(const FormatRow& format) {
    Check check(std::string("rows of ") + format.name);
    Random random(6);
    constexpr int kRows = 21, kColumns = 768;
    const std::vector<uint8_t> raw = random_matrix(random, format, kRows, kColumns);
    ThreadPool pool(1);
    check.all_levels("unpacked", [&](const Kernels& kernels) {
        Arena arena;
        const Matrix matrix(arena, pool, kernels, format.format, TensorBytes(raw.data()), kRows,
                            kColumns, {});
        Floats rows(static_cast<size_t>(kRows) * kColumns);
        for (int row = 0; row < kRows; ++row) matrix.dequantise_row(row, &rows[row * kColumns]);
        return rows;
    });
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> names = {"portable"};
    for (const Kernels* level : fast_levels()) names.emplace_back(level->name);
    for (const std::string& name : names) std::fprintf(stderr, "level %s\n", name.c_str());
    for (int i = 1; i < argc; ++i) {
        if (std::find(names.begin(), names.end(), argv[i]) != names.end()) continue;
        std::fprintf(stderr, "level %s does not run here\n", argv[i]);
        return 1;
    }
    for (const FormatRow& row : kFormats) {
        check_matmul(row);
        check_long_matmul(row);
        check_extreme_codes(row);
        check_dequantise(row);
    }
    check_halves();
    check_quantise();
    check_rows();
    check_exp();
    for (KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kQ4}) {
        check_store_kv(type);
        check_attend(type);
        if (type != KvType::kQ4) check_latents(type);
    }
    return Check::failed ? 1 : 0;
}
