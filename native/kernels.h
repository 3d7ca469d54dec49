// The signatures of all kernels, and the table that holds one version of each.
//
// One table per instruction level. All levels compute the same bits (simd.h and matmul_*.h explain
// how), so the choice of a level only changes the speed.
#pragma once

#include <cstdint>

#include "formats.h"

namespace heddle {

constexpr int kPageTokens = 32;  // tokens per KV page

// Types of stored keys and values; kv_parts.h describes their layout.
enum class KvType { kF16, kQ8_0, kQ4 };

// Activations of gated feed-forward layers; `Ops.gated` in src/heddle/models/ops.py defines them.
enum class Activation {
    kSilu,
    kGelu,
    kClamped,
    kSigmoid,
    kIdentity,
    kGeluErf,
    kRelu,
    kSiluTo7,
    kSiluTo16,
    kLimited
};
constexpr int kActivations = 10;

// Activations without gates; `Ops.activate` there defines them.
enum class Map { kSigmoid, kSquaredRelu, kGelu, kGeluErf, kRelu, kSilu, kTanh, kXieluTail };
constexpr int kMaps = 8;

// Bytes that one layer's keys of one head, or its values, take in a page. Codes have an f16 scale
// for each 32 elements: head_dim must be a multiple of 32.
constexpr int64_t kv_half_bytes(KvType type, int head_dim) {
    const int64_t elements = int64_t{kPageTokens} * head_dim;
    if (type == KvType::kF16) return elements * 2;
    return (type == KvType::kQ8_0 ? elements : elements / 2) + elements / kBlock * 2;
}
// Bytes of keys and values. Of latents, the first elements of the keys are the values.
constexpr int64_t kv_part_bytes(KvType type, int head_dim, bool has_values = true) {
    return kv_half_bytes(type, head_dim) * (has_values ? 2 : 1);
}

// A matrix (rows, columns) in panels; see formats.h. Rows past the end are packed as zeros. Float
// formats hold columns one after the other, panel_rows values each.
struct PackedMatrix {
    Format format;
    int rows;
    int columns;
    int64_t panel_bytes;
    const uint8_t* panels;  // 64-byte aligned
    const float* bias;      // (rows,) or null
};

// A dot product in int32 may begin with these bits, which are those of the float 1.5 * 2**23: then
// its own bits, read as a float, are that float plus the sum, exactly, for sums below 2**22. So no
// conversion is needed: fma(bits, scale, -kZero * scale) is the sum times the scale, rounded once,
// as long as kZero * scale is exact: scales have at most 22 bits.
constexpr float kZero = 12582912.0f;
constexpr int32_t kZeroBits = 0x4B400000;
constexpr int kByteOffset = 128;  // of codes in slices

// Whether a format's sums are read so: powers of two up to 2**127 times kZero are too large.
constexpr bool sums_are_floats(const Layout& layout) { return layout.scale != Scale::kE8M0; }

// Scale and sums of 32 activations for a matmul, beside their int8 codes q: x is about q * d. The
// sums are over q, for the complete block and its halves. Minima of weights multiply them; offsets
// multiply the negated sums, with which a dot product begins.
struct BlockScale {
    float d;
    float s;          // d * sum
    float half_s[2];  // d * the sum of each half
    // kZeroBits - kByteOffset * sum, for the complete block and for each half.
    int32_t start, half_start[2];
    int16_t minus_half_sum[2];
};
static_assert(sizeof(BlockScale) == 32);

// Two factors for `minus_half_sum`: the offset for the halves that a part has, as int16 pairs.
constexpr int32_t offset_factors(const Layout& layout, int part) {
    const int first = layout.parts == 1 || part == 0 ? layout.offset : 0;
    const int second = layout.parts == 1 || part == 1 ? layout.offset : 0;
    return second << 16 | first;
}

// Activations (tokens, columns) in int8, with a BlockScale for each 32 of them. A matmul reads the
// first columns of each row, as many as its matrix has.
struct QuantisedRows {
    int8_t* q;           // (tokens, columns)
    BlockScale* scales;  // (tokens, columns / 32)
    int64_t columns;
};

// A matmul of many tokens reads its activations from a copy that is packed by tiles of tokens
// (slices.h): a block of a tile is a record, with the codes of all tokens, and then each number of
// their scales.
struct PackedRows {
    const uint8_t* tiles;  // packed_bytes, of (tokens, blocks) records; null: not packed
    int64_t blocks;        // of a row
    int64_t first_block;   // the first that is read
};
constexpr int64_t kPackedBlock = kBlock + 7 * 4;  // codes, d, s, half_s, start, half_start
// Bytes of the copy. Products of tiles read the codes of a full tile where fewer tokens are packed.
constexpr int64_t packed_bytes(int64_t tokens, int64_t blocks) {
    return tokens * blocks * kPackedBlock + 16 * kBlock;
}

// Columns of a slice, slices multiplied together at most, panels whose sums wait for the next
// slices, and tokens whose activations stay in the second-level cache meanwhile.
constexpr int kSliceColumns = 512;
constexpr int kSlices = 2;
constexpr int kSlicePanels = 8;
constexpr int kTokenBlock = 256;
// Codes, and up to six vectors of floats for each block of columns.
constexpr int64_t kSliceBytes = int64_t{kSliceColumns / kBlock} * 16 * (kBlock + 6 * 4);
constexpr int64_t kMatmulScratch =
    kSlices * kSliceBytes + int64_t{kSlicePanels} * kTokenBlock * 16 * 4;

// out[t, row] (+)= w[row] . x[t] + bias[row], for the rows of panels [first_panel, last_panel).
struct MatmulArgs {
    const PackedMatrix* w;
    QuantisedRows xq;   // for quantised formats
    PackedRows packed;  // the same activations; read if they are there
    const float* x;     // for float formats, (tokens, x_stride)
    int64_t x_stride;
    float* out;  // (tokens, out_stride)
    int64_t out_stride;
    bool accumulate;
    int first_panel;
    int last_panel;
    int tokens;
    uint8_t* scratch;  // kMatmulScratch bytes, 64-byte aligned; used if the activations are packed
};

// The first position that a causal query sees; see AttendArgs::window.
constexpr int first_seen(int position, int window, bool aligned) {
    if (window == 0) return 0;
    if (aligned) return position - position % window;
    return position >= window ? position + 1 - window : 0;
}

// Attention of one span's queries over one layer's keys and values of one head. Over latents, a
// query has two parts: value_dim elements in the space of latents, and a rotated part.
struct AttendArgs {
    const float* q;  // (tokens, q_stride), already rotated
    int64_t q_stride;
    const float* turned;  // (tokens, turned_stride), the rotated parts; null: not over latents
    int64_t turned_stride, turned_head;  // from one token, and one head, to the next
    float* out;                          // (tokens, out_stride)
    int64_t out_stride;
    KvType kv_type;
    const uint8_t* kv;     // this layer's and head's part of page 0
    int64_t page_stride;   // bytes from one page id to the next
    const int32_t* pages;  // the sequence's page ids, from page `first_page` on
    int first_page;        // no query attends to a page before it
    const uint8_t* next;   // the part that the thread probably needs next, or null
    int tokens;            // query tokens
    int first_position;    // of the first query token
    int group;             // query heads that share this key/value head; contiguous in q
    int head_dim;          // of a key, a multiple of 16
    int value_dim;         // the same, or the elements of a latent
    int last_position;     // of the step's last token of the sequence; read unless `causal`
    bool causal;           // whether a query sees no later positions
    int window;            // positions to one side, itself included, that a query sees; 0 for all
    bool aligned;          // whether it sees its run of `window` positions instead, from the left
    // The run [begin, end) of the first query token, and integers to the next token's. A causal
    // query sees up to the end of its run, any other one its run alone; null: no runs.
    const int32_t* runs;
    int run_stride;
    float scale;         // of scores, then:
    float soft_cap;      // score = soft_cap * tanh(score / soft_cap); 0: no cap
    const float* sinks;  // (group,), a score of no position that joins each head's sum; or null
    // (group, bias_stride), at the distance 0: what joins a score by the distance of its position,
    // divided by `scale`; or null.
    const float* bias;
    int64_t bias_stride;
    float* scratch;  // attend_scratch(value_dim) floats; a line's alignment makes it faster
};

// Keys and values of consecutive tokens of one page, one layer and head.
struct StoreKvArgs {
    const float* k;  // (tokens, stride), the head's elements first
    const float* v;
    int64_t stride;
    KvType kv_type;
    uint8_t* part;
    int head_dim;
    int position;  // of the first token within the page
    int tokens;
};

// A causal convolution of some columns of a span's rows.
struct ConvArgs {
    const float* x;        // (tokens, stride)
    const float* state;    // (taps - 1, state_stride), the rows before x, the oldest first
    const float* filters;  // (taps, state_stride)
    const float* bias;     // (columns,), or null
    float* out;            // (tokens, stride)
    int64_t stride, state_stride;
    int columns;
    int taps;
    int tokens;
    bool silu;  // whether the result passes silu
};

constexpr int kStateColumns = 32;  // columns of a block of a head's matrix

// Linear attention of one head over a span's tokens; see `Ops.linear_attend` in ops.py. The matrix
// (key_dim, value_dim) lies in blocks of kStateColumns columns, the last one perhaps narrower.
struct LinearAttendArgs {
    const float *q, *k;     // (tokens, key_stride), the head's elements first
    const float* v;         // (tokens, value_stride)
    float* out;             // (tokens, value_stride)
    const float* decay;     // (tokens, decay_stride): one factor, or one for each row of the matrix
    const float* strength;  // (tokens, strength_stride)
    int64_t key_stride, value_stride, decay_stride, strength_stride;
    float* state;  // the matrix. It holds the first `certain` tokens afterwards.
    float* kept;   // gets the matrix after the last token; may be `state`
    int certain;   // fewer than `tokens`, unless `kept` is `state`
    int key_dim, value_dim;
    int first_column, last_column;  // the columns to compute, whole blocks
    int tokens;
    bool decay_of_rows;
    bool corrects;
    bool skips;
    float skip;      // factor on values that are added to the result, if `skips`
    float* scratch;  // 3 * key_dim floats
};

constexpr int kScanChannels = 16;  // channels of a block of a selective scan

// A selective scan of some channels over a span's tokens; see `Ops.selective_scan` in ops.py. The
// state and the rates (states, channels) lie in blocks of kScanChannels channels, the last one
// perhaps narrower.
struct SelectiveScanArgs {
    const float *q, *k;     // (tokens, states)
    const float *v, *step;  // (tokens, stride), the first of the channels first
    const float* rates;
    const float* skip;  // (channels,)
    float* out;         // (tokens, stride)
    int64_t stride;
    float* state;  // holds the first `certain` tokens afterwards
    float* kept;   // gets the state after the last token; may be `state`
    int certain;   // fewer than `tokens`, unless `kept` is `state`
    int states, channels;
    int tokens;
};

// Rows of a span mixed with the row before each; see `Ops.token_shift` in ops.py.
struct ShiftArgs {
    const float* x;       // (tokens, stride)
    const float* before;  // (columns,), the row before x
    const float* shares;  // (parts, stride)
    float* out;           // (tokens, parts * stride)
    int64_t stride;
    int columns;
    int parts;
    int tokens;
};

// RWKV-7's recurrence of one head over a span's tokens; see `Ops.rwkv_attend` in ops.py. All
// vectors have `size` elements, and the matrix is (size, size).
struct RwkvArgs {
    const float *r, *k, *v, *decay, *rate;  // (tokens, stride), the head's elements first
    float* out;                             // (tokens, stride)
    const float *removal, *replacement, *bonus, *norm, *norm_bias;
    int64_t stride;
    float* state;  // the matrix. It holds the first `certain` tokens afterwards.
    float* kept;   // gets the matrix after the last token; may be `state`
    int certain;   // fewer than `tokens`, unless `kept` is `state`
    int size;      // a multiple of 16
    int tokens;
    float eps;
    float* scratch;  // 4 * size floats
};

// Latents and rotated keys of consecutive tokens of one page and layer.
struct StoreLatentArgs {
    const float* latent;  // (tokens, rank)
    const float* key;     // (tokens, head_dim - rank)
    int rank, head_dim;
    KvType kv_type;
    uint8_t* part;
    int position;  // of the first token within the page
    int tokens;
};

// Compresses columns [first_column, first_column + columns) of `dim`, of a span's rows. The state
// is a ring of rows by position, as many as one result reads: `width` columns that are compressed,
// then their gates with the bias. With `overlaps`, a result is of twice `ratio` rows: of the first
// half, it reads the first `dim` columns, of the second half the others.
struct CompressArgs {
    const float *x, *gate;  // (tokens, stride)
    const float* bias;      // (ratio, width)
    float* state;           // (rows, state_stride)
    float* out;             // (tokens, dim), zeros where no run of positions ends; null: none
    int64_t stride, state_stride;
    int width, dim;
    int first_column, columns;  // multiples of 16
    int first_position, tokens;
    int ratio;
    bool overlaps;
};

// Attention of some heads of one token to the keys of a window, and to the compressed keys of runs
// of `ratio` positions that have ended. Vectors of the cache have both keys of a position.
struct AttendCompressedArgs {
    const float* q;  // (heads, dim)
    float* out;      // (heads, dim)
    KvType kv_type;
    const uint8_t* kv;  // see AttendArgs, also for the next three
    int64_t page_stride;
    const int32_t* pages;
    int first_page;
    int position, window, ratio;
    int heads, dim;
    int keys;  // that the token sees
    float scale;
    const float* sinks;  // (heads,), or null
    float* scratch;      // (4, keys)
};

constexpr int kWidestHead = 1024;   // elements of the widest key that is supported
constexpr int kAttendQueries = 48;  // queries handled together
constexpr int kSplitTokens = 256;   // positions of a split, a multiple of the page
// Floats, in complete lines, for the sums of `queries` queries: values, maxima, sums of
// exponentials.
constexpr int64_t attend_part(int queries, int value_dim) {
    return static_cast<int64_t>(queries) * value_dim + (2 * queries + 15) / 16 * 16;
}
// Floats for the codes of queries, with a scale and a sum for each 32 elements.
constexpr int64_t attend_codes(int head_dim) {
    return static_cast<int64_t>(kAttendQueries) * (head_dim / 4 + head_dim / 16);
}
// Scores of a split, sums of all splits and of one, codes.
constexpr int64_t attend_scratch(int value_dim) {
    return static_cast<int64_t>(kAttendQueries) * kSplitTokens +
           2 * attend_part(kAttendQueries, value_dim) + attend_codes(value_dim);
}

struct Kernels {
    const char* name;
    int panel_rows;
    void (*matmul)(const MatmulArgs&);
    // Matmuls of at least so many tokens are faster with packed activations; 0: none is.
    int packs_from;
    int tile_tokens;  // of packed activations, at most
    // Packs the first columns of a tile of `rows`, which are `tokens` in all.
    void (*pack)(const QuantisedRows& rows, int columns, int tokens, int tile, uint8_t* tiles);
    // x (n,) to int8 and a scale per block; n is a multiple of 32.
    void (*quantise)(const float* x, int n, int8_t* q, BlockScale* scales);
    // out = x / sqrt(mean(x**2) + eps) * w
    void (*norm)(const float* x, const float* w, int n, float eps, float* out);
    // y = x - mean(x); out = y / sqrt(mean(y**2) + eps) * w + b
    void (*layer_norm)(const float* x, const float* w, const float* b, int n, float eps,
                       float* out);
    // out = activation(gate) * up; out may be gate
    void (*gated[kActivations])(const float* gate, const float* up, int n, float* out);
    void (*add)(const float* x, const float* y, int n, float* out);
    // out += x * factor
    void (*add_scaled)(const float* x, float factor, int n, float* out);
    void (*scale)(const float* x, float factor, int n, float* out);
    float (*dot)(const float* x, const float* y, int n);
    // out = cap * tanh(x / cap)
    void (*soft_cap)(const float* x, float cap, int n, float* out);
    // out = activation(x); out may be x
    void (*map[kMaps])(const float* x, int n, float* out);
    // out = softplus(x + bias), limited to [least, most]
    void (*step_size)(const float* x, const float* bias, int n, float least, float most,
                      float* out);
    void (*conv)(const ConvArgs&);
    void (*linear_attend)(const LinearAttendArgs&);
    void (*selective_scan)(const SelectiveScanArgs&);
    void (*compress)(const CompressArgs&);
    void (*attend_compressed)(const AttendCompressedArgs&);
    void (*token_shift)(const ShiftArgs&);
    void (*rwkv_attend)(const RwkvArgs&);
    void (*store_kv)(const StoreKvArgs&);
    void (*store_latents)(const StoreLatentArgs&);
    void (*attend)(const AttendArgs&);
    // `attend` in two steps, for at most kAttendQueries queries (tokens * group): each split of
    // positions alone, then the merge of all splits. `part` is attend_part(tokens * group,
    // value_dim) floats. `parts` holds one part per split, by number of the split; parts outside
    // the window are not read.
    void (*attend_split)(const AttendArgs&, int split, float* part);
    void (*attend_merge)(const AttendArgs&, float* parts);
    float (*max)(const float* x, int n);
    // Sum of exp((x - shift) * factor), n any; 16 lane sums folded at the end.
    float (*sum_exp)(const float* x, int n, float shift, float factor);
    // out = exp((x - shift) * factor)
    void (*exp_all)(const float* x, int n, float shift, float factor, float* out);
    // Runs `rounds` times as many of the matmul's multiplications as fit in flight, on registers.
    // Returns the number of multiply-adds, each of one code and one activation.
    int64_t (*multiply_adds)(int64_t rounds);
    const char* multiplication;  // name of the matmul's instruction, for reports
    // Quantises (super-)blocks of a row to a type that has a writer. `importance` has a weight for
    // each column, or is null. A block with a value that is not finite gets a NaN scale.
    void (*encode)(Format format, const float* x, const float* importance, int blocks,
                   FileBlock* out);
};

// Null if the compiler cannot build the level. `supported` checks the running CPU.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels* emulated_tiles_kernels();  // of native test programs
const Kernels* neon_kernels();
const Kernels* i8mm_kernels();
bool supported(const Kernels* kernels);
// Asks the system for what a supported level needs; false: it refuses. Linux gives tiles to a
// process that asks for them, unless one of its signal stacks is too small for them.
bool enable(const Kernels* kernels);

}  // namespace heddle
