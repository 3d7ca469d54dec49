// Compiled once per instruction level. The build defines HEDDLE_ISA_AVX512, HEDDLE_ISA_AVXVNNI,
// HEDDLE_ISA_AVX2, HEDDLE_ISA_I8MM, HEDDLE_ISA_NEON or HEDDLE_ISA_PORTABLE, and sets the flags of
// the level.
#if defined(HEDDLE_ISA_AVXVNNI)
#define HEDDLE_ISA_AVX2  // all but the multiplication of codes
#elif defined(HEDDLE_ISA_I8MM)
#define HEDDLE_ISA_NEON  // all but the multiplication of slices
#endif

#include "kernels.h"

#include "attention.h"
#include "encode.h"
#include "integer_peak.h"
#include "quantise.h"
#include "recurrence.h"
#include "simd.h"
#include "tiles.h"

#if defined(HEDDLE_ISA_AVX512)
#include "matmul_avx512.h"
#elif defined(HEDDLE_ISA_AVX2)
#include "matmul_avx2.h"
#elif defined(HEDDLE_ISA_NEON)
#include "matmul_neon.h"
#else
#include "matmul_portable.h"
#endif
#if defined(HEDDLE_HAS_SLICES)
#include "slices.h"
#endif

namespace {

using namespace heddle;

template <Format F, int T>
struct TileTable {
    static void run(const MatmulArgs& a, int panel, int64_t token, int tokens) {
        if (tokens == T) {
            tile<F, T>(a, panel, token);
        } else {
            TileTable<F, T - 1>::run(a, panel, token, tokens);
        }
    }
};
template <Format F>
struct TileTable<F, 0> {
    static void run(const MatmulArgs&, int, int64_t, int) {}
};

template <Format F>
void matmul_tiles(const MatmulArgs& a) {
    for (int block = 0; block < a.tokens; block += kTokenBlock) {
        const int tokens = a.tokens - block < kTokenBlock ? a.tokens - block : kTokenBlock;
        const int tiles = tiles_of(tokens, kMaxTile);
        for (int panel = a.first_panel; panel < a.last_panel; ++panel) {
            for (int i = 0; i < tiles; ++i) {
                const int first = tile_begin(tokens, tiles, i);
                const int last = tile_begin(tokens, tiles, i + 1);
                TileTable<F, kMaxTile>::run(a, panel, block + first, last - first);
            }
        }
    }
}

template <Format F>
void matmul_format(const MatmulArgs& a) {
#if defined(HEDDLE_HAS_SLICES)
    if constexpr (is_quantised(F) && (kConvertsSums || sums_are_floats(layout_of(F)))) {
        if (a.packed.tiles != nullptr) return matmul_slices<F>(a);
    }
#endif
    matmul_tiles<F>(a);
}

// Finds the format's row and runs its kernels.
template <size_t Row = 0>
void matmul(const MatmulArgs& a) {
    if constexpr (Row < sizeof(kFormats) / sizeof(kFormats[0])) {
        constexpr Format F = kFormats[Row].format;
        if (a.w->format == F) return matmul_format<first_like(F)>(a);
        matmul<Row + 1>(a);
    }
}

void quantise(const float* x, int n, int8_t* q, BlockScale* scales) {
    for (int b = 0; b < n / kBlock; ++b) {
        int8_t* codes = q + b * kBlock;
        const float peak = quantise_block(x + b * kBlock, codes);
        BlockScale& scale = scales[b];
        scale.d = peak / 127.0f;
        int32_t complete = 0;
        for (int half = 0; half < 2; ++half) {
            const int32_t sum = sum_of_16(codes + half * 16);
            complete += sum;
            scale.half_s[half] = scale.d * static_cast<float>(sum);
            scale.half_start[half] = kZeroBits - kByteOffset * sum;
            scale.minus_half_sum[half] = static_cast<int16_t>(-sum);
        }
        scale.s = scale.d * static_cast<float>(complete);
        scale.start = kZeroBits - kByteOffset * complete;
    }
}

// 1 / sqrt(mean(x**2) + eps)
float norm_factor(const float* x, int n, float eps) {
    V16 squares = splat(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) squares = fma(load(x + i), load(x + i), squares);
    if (i < n) {
        const V16 rest = load_partial(x + i, n - i, 0.0f);
        squares = fma(rest, rest, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(n);
    // A row whose squares overflow would become zeros, which look valid. NaN reaches the sampler.
    return mean < __builtin_inff() ? 1.0f / __builtin_sqrtf(mean + eps) : __builtin_nanf("");
}

void norm(const float* x, const float* w, int n, float eps, float* out) {
    const float factor = norm_factor(x, n, eps);
    for (int i = 0; i < n; ++i) out[i] = x[i] * factor * w[i];
}

void layer_norm(const float* x, const float* w, const float* b, int n, float eps, float* out) {
    V16 sum = splat(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) sum = sum + load(x + i);
    if (i < n) sum = sum + load_partial(x + i, n - i, 0.0f);
    const float mean = reduce_add(sum) / static_cast<float>(n);
    for (i = 0; i < n; ++i) out[i] = x[i] - mean;
    const float factor = norm_factor(out, n, eps);
    for (i = 0; i < n; ++i) out[i] = __builtin_fmaf(out[i] * factor, w[i], b[i]);
}

inline V16 silu_times(V16 gate, V16 up) {
    return gate / (splat(1.0f) + exp(splat(0.0f) - gate)) * up;
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x**3).
inline V16 gelu_times(V16 gate, V16 up) {
    const V16 cubic = fma(gate * gate * gate, splat(0.044715f), gate);
    return gate / (splat(1.0f) + exp(cubic * splat(-1.5957691216f))) * up;
}

// GPT-OSS: gate * sigmoid(1.702 gate) * (up + 1), after gate is limited to 7 and up to [-7, 7]. A
// NaN stays one: `min` and `max` return their second operand then.
inline V16 clamped_times(V16 gate, V16 up) {
    const V16 limit = splat(7.0f);
    const V16 g = min(limit, gate), u = max(splat(-7.0f), min(limit, up));
    return g / (splat(1.0f) + exp(g * splat(-1.702f))) * (u + splat(1.0f));
}

// Step 3.5: silu(gate) * up, after silu(gate) is limited to `most` and up to [-most, most]. A NaN
// stays one.
inline V16 limited_silu_times(V16 gate, V16 up, float most) {
    const V16 limit = splat(most), u = max(splat(-most), min(limit, up));
    return min(limit, silu_times(gate, splat(1.0f))) * u;
}

// silu(gate) * up, after gate is limited to 10 and up to [-10, 10]: DeepSeek-V4. NaN of NaN.
inline V16 limited_times(V16 gate, V16 up) {
    const V16 limit = splat(10.0f);
    return silu_times(min(limit, gate), max(splat(-10.0f), min(limit, up)));
}

// erf(x) within 3e-7: an odd polynomial by an even one (coefficients of Eigen's erf of floats).
// Beyond 4 it is 1 in float32.
inline V16 erf(V16 x) {
    const V16 a = min(splat(4.0f), max(splat(-4.0f), x)), z = a * a;
    V16 p = splat(-2.72614225801306e-10f);
    p = fma(p, z, splat(2.77068142495902e-08f));
    p = fma(p, z, splat(-2.10102402082508e-06f));
    p = fma(p, z, splat(-5.69250639462346e-05f));
    p = fma(p, z, splat(-7.34990630326855e-04f));
    p = fma(p, z, splat(-2.95459980854025e-03f));
    p = fma(p, z, splat(-1.60960333262415e-02f));
    V16 q = splat(-1.45660718464996e-05f);
    q = fma(q, z, splat(-2.13374055278905e-04f));
    q = fma(q, z, splat(-1.68282697438203e-03f));
    q = fma(q, z, splat(-7.37332916720468e-03f));
    q = fma(q, z, splat(-1.42647390514189e-02f));
    return a * p / q;
}

inline V16 gelu_erf_times(V16 gate, V16 up) {
    const V16 half = gate * splat(0.5f);
    return fma(half, erf(gate * splat(0.70710678f)), half) * up;
}

template <typename F>
inline void gated(const float* gate, const float* up, int n, float* out, F activate) {
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, activate(load(gate + i), load(up + i)));
    if (i < n) {
        store_partial(
            out + i, n - i,
            activate(load_partial(gate + i, n - i, 0.0f), load_partial(up + i, n - i, 0.0f)));
    }
}

void gated_silu(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return silu_times(x, y); });
}

void gated_gelu(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return gelu_times(x, y); });
}

void gated_clamped(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return clamped_times(x, y); });
}

void gated_sigmoid(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return sigmoid(x) * y; });
}

void gated_identity(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return x * y; });
}

void gated_gelu_erf(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return gelu_erf_times(x, y); });
}

void gated_relu(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return max(splat(0.0f), x) * y; });
}

void gated_silu_to_7(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return limited_silu_times(x, y, 7.0f); });
}

void gated_silu_to_16(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return limited_silu_times(x, y, 16.0f); });
}

void gated_limited(const float* gate, const float* up, int n, float* out) {
    gated(gate, up, n, out, [](V16 x, V16 y) { return limited_times(x, y); });
}

void gelu(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return gelu_times(a, splat(1.0f)); });
}

void gelu_erf(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return gelu_erf_times(a, splat(1.0f)); });
}

// NaN of NaN: `max` returns its second operand then.
void relu(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return max(splat(0.0f), a); });
}

void silu(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return silu_times(a, splat(1.0f)); });
}

void tanh_all(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return tanh(a); });
}

// What xIELU adds below zero: exp(y) - 1 - x with y = min(x, -1e-6). Near zero, a Taylor polynomial
// of (exp(y) - 1 - y) / y**2 keeps the digits that the difference would lose. NaN of NaN.
inline V16 xielu_tail(V16 x) {
    const V16 y = min(splat(-1e-6f), x);
    V16 p = splat(1.0f / 362880);
    p = fma(p, y, splat(1.0f / 40320));
    p = fma(p, y, splat(1.0f / 5040));
    p = fma(p, y, splat(1.0f / 720));
    p = fma(p, y, splat(1.0f / 120));
    p = fma(p, y, splat(1.0f / 24));
    p = fma(p, y, splat(1.0f / 6));
    p = fma(p, y, splat(0.5f));
    const V16 far = exp(y) - splat(1.0f) - y;
    const V16 below = select_less(splat(-0.5f), y, p * y * y, far) + (y - x);
    return select_less(splat(0.0f), x, splat(0.0f), below);
}

void xielu_tail_all(const float* x, int n, float* out) {
    each(x, n, out, [](V16 a, int) { return xielu_tail(a); });
}

void scale(const float* x, float factor, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void soft_cap(const float* x, float cap, int n, float* out) {
    const V16 high = splat(cap), inverse = splat(1.0f / cap);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, high * tanh(load(x + i) * inverse));
    if (i < n)
        store_partial(out + i, n - i, high * tanh(load_partial(x + i, n - i, 0.0f) * inverse));
}

void add(const float* x, const float* y, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = x[i] + y[i];
}

void add_scaled(const float* x, float factor, int n, float* out) {
    const V16 by = splat(factor);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, fma(load(x + i), by, load(out + i)));
    if (i < n) {
        store_partial(
            out + i, n - i,
            fma(load_partial(x + i, n - i, 0.0f), by, load_partial(out + i, n - i, 0.0f)));
    }
}

float max_of(const float* x, int n) {
    V16 peak = splat(-__builtin_inff());
    int i = 0;
    for (; i + 16 <= n; i += 16) peak = max(peak, load(x + i));
    if (i < n) peak = max(peak, load_partial(x + i, n - i, -__builtin_inff()));
    return reduce_max(peak);
}

float sum_exp(const float* x, int n, float shift, float factor) {
    const V16 from = splat(shift), by = splat(factor);
    V16 total = splat(0.0f);
    int i = 0;
    for (; i + 16 <= n; i += 16) total = total + exp((load(x + i) - from) * by);
    if (i < n) {
        total = total + exp((load_partial(x + i, n - i, -__builtin_inff()) - from) * by);
    }
    return reduce_add(total);
}

void exp_all(const float* x, int n, float shift, float factor, float* out) {
    const V16 from = splat(shift), by = splat(factor);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, exp((load(x + i) - from) * by));
    if (i < n) {
        store_partial(out + i, n - i, exp((load_partial(x + i, n - i, 0.0f) - from) * by));
    }
}

}  // namespace

#include "compressed.h"  // uses the kernels above

namespace {

constexpr const char* kName =
#if defined(HEDDLE_ISA_AVX512)
    "avx512";
#elif defined(HEDDLE_ISA_AVXVNNI)
    "avxvnni";
#elif defined(HEDDLE_ISA_AVX2)
    "avx2";
#elif defined(HEDDLE_ISA_I8MM)
    "i8mm";
#elif defined(HEDDLE_ISA_NEON)
    "neon";
#else
    "portable";
#endif

#if defined(HEDDLE_HAS_SLICES)
constexpr int kTileTokens = kSliceTile;
#else
constexpr int kPacksFrom = 0, kTileTokens = 1;
void pack(const QuantisedRows&, int, int, int, uint8_t*) {}
#endif

const Kernels kTable = {
    kName,
    kPanelRows,
    matmul<>,
    kPacksFrom,
    kTileTokens,
    pack,
    quantise,
    norm,
    layer_norm,
    {gated_silu, gated_gelu, gated_clamped, gated_sigmoid, gated_identity, gated_gelu_erf,
     gated_relu, gated_silu_to_7, gated_silu_to_16, gated_limited},
    add,
    add_scaled,
    scale,
    dot,
    soft_cap,
    {sigmoid_all, squared_relu, gelu, gelu_erf, relu, silu, tanh_all, xielu_tail_all},
    step_size,
    conv,
    linear_attend,
    selective_scan,
    compress,
    attend_compressed,
    token_shift,
    rwkv_attend,
    store_kv,
    store_latents,
    attend,
    attend_split,
    attend_merge,
    max_of,
    sum_exp,
    exp_all,
    multiply_adds,
    kMultiplication,
    encode<>};

}  // namespace

namespace heddle {

#if defined(HEDDLE_ISA_AVX512)
const Kernels* avx512_kernels() { return &kTable; }
#elif defined(HEDDLE_ISA_AVXVNNI)
const Kernels* avxvnni_kernels() { return &kTable; }
#elif defined(HEDDLE_ISA_AVX2)
const Kernels* avx2_kernels() { return &kTable; }
#elif defined(HEDDLE_ISA_I8MM)
const Kernels* i8mm_kernels() { return &kTable; }
#elif defined(HEDDLE_ISA_NEON)
const Kernels* neon_kernels() { return &kTable; }
#else
const Kernels* portable_kernels() { return &kTable; }
#endif

}  // namespace heddle
