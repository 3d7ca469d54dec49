// A model as a flat list of instructions over numbered buffers. Two calls run a step: `begin`
// starts it, and `finish` computes with the workers until the step has ended.
//
// Python records the architecture once and appends the instructions. This file knows no models.
// Buffers are float32 (tokens, width); some also have a block-quantised int8 copy. The largest step
// determines the size of a buffer. Instructions run in order. Each instruction consists of items,
// and any thread may take an item. Results do not depend on the thread.
//
// After take_rows, instructions work on rows: the tokens that have an outcome. A step samples few
// tokens, but may score or pool hundreds. Logits of hundreds of tokens would take 300 MB, so the
// instructions after take_rows run for at most max_rows rows at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapter.h"
#include "attention_plan.h"
#include "experts.h"
#include "fixed_states.h"
#include "kernels.h"
#include "kv_cache.h"
#include "line_floats.h"
#include "mapping.h"
#include "step.h"
#include "storage.h"
#include "thread_pool.h"

namespace heddle {

// Cosines and sines by (position, pair) in float32. The caller computes them in float64, and adds
// them before a step reaches their positions.
struct RopeTable {
    int dim;
    bool interleaved;
    MappedArray<float> cosine, sine;
    int64_t positions = 0;  // that it has so far
};

// What joins a score of each head, by the distance of its position from the query's: (heads,
// stride) from -(positions - 1) on. The caller has divided it by the factor on scores.
struct PositionBias {
    int heads, positions;
    std::vector<float> values;
    // The distances, and lanes of padding, because attention reads whole vectors.
    int64_t stride() const { return 2 * int64_t{positions} - 1 + 16; }
};

// Most pairs of a rotation by places.
constexpr int kMostAxisPairs = 256;

// What the rows of a lookup table are chosen by.
enum class Lookups { kTokens, kPositions };

struct MatmulPart {
    std::shared_ptr<const Matrix> matrix;
    int out;
    int in_column = 0, out_column = 0;  // the first ones that the matrix reads and writes
};

// A part of a matmul that adapters change, with the number of its matrix.
struct AdaptedPart {
    int site;
    std::shared_ptr<const Matrix> matrix;
    int out;
};

// The number of a matrix that adapters may change, and what a change of it may be.
struct Site {
    int number;
    bool is_whole;  // its product is the whole output, so another matrix may take its place
    bool has_gains;
};

// A change of the matrix `table` as rows are looked up in it, or of the products with `matrix`.
struct SiteChange {
    std::shared_ptr<const Matrix> matrix;
    LowRank change;
    bool is_lookup = false;
};

// One layer's attention.
struct AttentionShape {
    int q, layer, cache;  // `layer` counts within the cache with index `cache`
    int heads;
    float scale;
    int out;
    bool quantise;
    int window = 0;  // see AttendArgs, also for the next four
    bool aligned = false;
    bool causal = true;
    int runs = 0;  // the kind of runs that a token sees whole, from 1 on; 0: none
    float soft_cap = 0.0f;
    std::vector<float> sinks = {};  // (heads,), or empty
    int turned = -1;                // over latents: queries whose heads end with the rotated part
    int bias = -1;                  // number of the position bias; -1: none
    int plan = 0;                   // index of the attention plan; Program::attend sets it
};

// One layer's linear attention; see LinearAttendArgs. `place` is an offset in the state, in floats.
struct LinearAttention {
    int q, k, v, decay, strength;
    int heads, key_heads, key_dim, value_dim;
    bool corrects, tiled;
    int64_t place;
    std::vector<float> skip;  // (heads,), or empty
    int out;
};

// One layer's selective scan; see SelectiveScanArgs. `rates` are (channels, states), `skip` is
// (channels,). `place` is an offset in the state, in floats.
struct Scan {
    int q, k, v, step;
    std::vector<float> rates, skip;
    int64_t place;
    int out;
};

// A causal convolution. `filters` are (taps, width), `bias` (width,) or empty.
struct Convolution {
    int in, taps;
    std::vector<float> filters, bias;
    int64_t place;
    bool silu;
    int out;
};

// Weighted means of runs of `ratio` positions; see CompressArgs. `bias` is (ratio, width of x).
struct Compression {
    int x, gate, ratio;
    bool overlaps;
    std::vector<float> bias;
    int64_t place;
    int out;
};

// Attention to a window and to compressed positions; see AttendCompressedArgs.
struct CompressedAttention {
    int q, layer, cache, heads;
    float scale;
    int window, ratio;
    std::vector<float> sinks;  // (heads,), or empty
    int out;
};

// The weights by which streams are mixed; see stream_instructions.cpp. `base` has one term for each
// column, `scales` a factor for each of the three kinds of weights, or for the first kind.
struct StreamMixing {
    int in, streams;
    std::vector<float> base, scales;
    int turns;  // of the balance of sums
    float eps;
    int out;
};

// Rows mixed with the row before each. `shares` has a row for each part of the output.
struct Shift {
    int in;
    std::vector<float> shares;
    int64_t place;
    int out;
};

// One layer's recurrence of RWKV-7; see RwkvArgs. The vectors are of all heads.
struct RwkvAttention {
    int r, k, v, decay, rate;
    std::vector<float> removal, replacement, bonus, norm, norm_bias;
    int heads;
    int64_t place;
    float eps;
    int out;
};

class Instruction;

struct Cut {
    int first, last;
    Cut times(int n) const { return {first * n, last * n}; }
};

class Program final : private Task {
  public:
    // Each of `caches` holds one group of layers. The program shares ownership of the caches and of
    // its matrices. `pool` and `kernels` must outlive the program.
    // `states` is null if no layer is recurrent.
    Program(ThreadPool& pool, const Kernels& kernels, std::vector<std::shared_ptr<KvCache>> caches,
            int max_tokens, int max_rows, std::shared_ptr<FixedStates> states = nullptr);
    ~Program() override;
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // A float buffer of max_tokens rows (max_rows if `per_row`); returns its number.
    int buffer(int width, bool per_row);
    // A table that is empty, with room for `positions`.
    int rope_table(int dim, bool interleaved, int64_t positions);
    // Adds the next positions, each `pairs` cosines and sines. Not while a step runs.
    void extend_rope(int table, const float* cosine, const float* sine, int pairs, int positions);
    // `values` are (heads, 2 * positions - 1).
    int position_bias(int heads, int positions, const std::vector<float>& values);

    // Instructions. The widths of buffers must agree; otherwise std::invalid_argument. `quantise`
    // requests an int8 copy of the output, for the matmuls that read it.
    void embed(std::shared_ptr<const Matrix> table, int out, Lookups by = Lookups::kTokens,
               int first = 0);
    // Rows by the number of separators before a token in its sequence, at most the last row. A step
    // holds whole sequences.
    void embed_segments(std::shared_ptr<const Matrix> table, int separator, int out);
    // Rows of the token before each one in its sequence, `start` before the first. A step holds
    // whole sequences.
    void embed_previous(std::shared_ptr<const Matrix> table, int start, int out);
    void mean_rows(int in, int out);  // each row becomes the mean of its sequence's
    void norm(int in, std::vector<float> weight, float eps, int out, bool quantise);
    void layer_norm(int in, std::vector<float> weight, std::vector<float> bias, float eps, int out,
                    bool quantise);
    void quantise(int in);
    void matmul(int in, std::vector<MatmulPart> parts, bool accumulate);
    // Matrix i multiplies the first columns of head i of `in`, as many as it has.
    void head_matmul(int in, std::vector<std::shared_ptr<const Matrix>> matrices, int out);
    void norm_heads(int in, std::vector<float> weight, float eps, int heads);  // in place
    void scale(int in, float factor);                                          // in place
    void soft_cap(int in, float cap);                                          // in place
    void gated(Activation activation, int gate, int up, int out, bool quantise);
    // The weighted sum of the experts that `logits` choose. `in` is quantised if their matrices
    // are.
    void experts(std::shared_ptr<const ExpertLayer> layer, int in, int logits, int out);
    // In place, from element `first` of a head. `axes` has the axis of each pair, whose place in
    // the step turns it; empty: the position turns all.
    void rope(int in, int table, int heads, int first, std::vector<int> axes = {});
    // In place: columns `first` and later of rows of pictures replace those of their tokens, or are
    // added to them.
    void see(int in, int first, bool adds);
    // Columns of each of `heads` heads.
    void take_columns(int in, int first, int heads, int out);
    void activate(Map map, int in, bool quantise);                             // in place
    void step_size(int in, std::vector<float> bias, float least, float most);  // in place
    void decay(int in, std::vector<float> rates, int out);
    void conv(Convolution shape);
    void linear_attend(LinearAttention shape);
    void selective_scan(Scan shape);
    void compress(Compression shape);
    void attend_compressed(CompressedAttention shape);
    void stream_weights(StreamMixing shape);
    void collapse(int streams, int weights, int out);
    void expand(int streams, int result, int weights, int out);
    // Lets only the columns that `table` (vocabulary, listed) has for a token take part.
    void keep_listed(int in, std::vector<int32_t> table, int listed, int out);
    void token_shift(Shift shape);
    void rwkv_attend(RwkvAttention shape);
    void join(int x, int y, int out);  // the columns of x, then those of y
    // `layer` counts within the cache with index `cache`.
    void store_kv(int k, int v, int layer, int cache);
    void store_latents(int latent, int key, int layer, int cache);
    // Without `causal`, a step must hold all tokens of a sequence. Several instructions may attend
    // to what one store_kv stored.
    void attend(AttentionShape shape);
    void gate_rows(int x, int gate, int out, Activation activation);
    void mix_heads(int x, int factors, int heads, int out);
    void add(int x, int y, int out);
    // Once. A row of `out` may be as wide as several rows of `in`: the wanted one and those after
    // it.
    void take_rows(int in, int out);
    // Adds hidden states to the sums of pooled rows. Later instructions skip pooled rows.
    void pool(int states);
    // Makes picks and scores from `logits`; the last instruction.
    void sample(int logits);
    // An adapter for steps of this program: changes of matrices that `matmul` or `experts`
    // multiplies, or in which `embed` looks tokens up. Throws std::invalid_argument if one of them
    // is not supported.
    std::shared_ptr<Adapter> adapter(std::vector<SiteChange> changes) const;

    // Starts the step on the workers. The step must live until `finish` has returned. Only one step
    // at a time. Throws std::invalid_argument if it refuses the step, and std::logic_error if the
    // threads have other work. In both cases nothing has begun.
    void begin(Step& step);
    // Lets the samplers run, and computes with the workers until the step has ended. False if the
    // step was abandoned. Rethrows the exception of an instruction, such as std::bad_alloc; the
    // program can then run the next step. In both cases, the step's results and its KV are
    // undefined.
    bool finish();
    // Ends the step in flight after the items in progress, and every later step at once. Any thread
    // may call it. It cannot be undone.
    void abandon() { abandoned_.store(true, std::memory_order_relaxed); }
    bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }
    // Wall time of all steps, in seconds. Between `begin` and `finish` the caller does other
    // work: of this time only the workers' share of the threads counts. Any thread may call it.
    double seconds() const { return seconds_.load(std::memory_order_relaxed); }
    // Sets the first rows of a float buffer that no instruction writes, for the next step. `values`
    // is (rows, width). Call it while no step runs.
    void write(int buffer, const float* values, int rows);
    // The float buffer's memory, (rows, width), after the last step.
    const float* data(int buffer) const;
    int width(int buffer) const;
    int pooled_width() const { return pooled_width_; }  // of a sum; 0 if nothing can be pooled
    int rows(int buffer) const;
    // How often threads wait for one another in a step of one token.
    int barriers() const;
    // Stages over tokens: a piece of a step ends before one of them, or with the step.
    int token_stages() const { return rows_begin_; }
    int caches() const { return static_cast<int>(caches_.size()); }
    bool is_recurrent() const { return states_ != nullptr; }

    // Nanoseconds of the calling thread per kind of instruction, since the last call.
    std::vector<std::pair<const char*, double>> take_profile();
    void set_profiling(bool on) { profiling_ = on; }

  private:
    friend class Instruction;
    using Clock = std::chrono::steady_clock;

    // Instructions that need no other items of one another are one stage. To the threads, a stage
    // is one instruction.
    int instructions() const override { return last_stage_ - first_stage_; }
    int items(int stage) const override;
    // Of all items of a stage, those of the step's part.
    Cut share(int stage) const;
    void run(int stage, int item, int thread) override;
    int stages() const { return static_cast<int>(stages_.size()); }
    int end_of(int stage) const;
    void run_instruction(int instruction, int item, int thread);

    struct Buffer {
        int width;
        bool per_row;  // a row per sampled token rather than per token
        MappedArray<float> values;
        // The quantised copy; empty unless an instruction requests it.
        MappedArray<int8_t> q;
        MappedArray<BlockScale> scales;
        // The quantised copy by tiles of tokens (PackedRows); empty unless a matmul reads it.
        MappedArray<uint8_t> packed;
        QuantisedRows quantised();
        // Codes from one row of the copy to the next. A matmul reads the same column of twelve rows
        // at once: a stride of 4,096 bytes would put all of them into one set of the first-level
        // cache, and their scales too.
        int64_t stride() const { return width % 1024 == 0 ? width + 2 * kBlock : width; }
    };

    void want_quantised(int buffer);
    void append_matmul(int in, std::vector<MatmulPart> parts, bool accumulate);
    Buffer& at(int buffer);
    void same_shape(int a, int b);
    void check_per_token(int buffer);
    void check_table(const PackedMatrix& table, int out);
    void check_layer(int layer, int cache) const;
    void check_latent_queries(const AttentionShape& shape) const;
    int plan_for(int groups);  // the index of the plan
    void check_tables(const Span& span) const;
    void check_place(int64_t place, int64_t count) const;
    void append(std::unique_ptr<Instruction> instruction);
    void append_alone(std::unique_ptr<Instruction> instruction);
    void append_adapters();
    int add_site(const Matrix* matrix, bool is_whole);
    void check_change(const SiteChange& change, const Site& site) const;
    void check(const Step& step) const;
    void check_draws(const Step& step) const;
    void check_readout(const Step& step) const;
    void check_sight(const Step& step) const;
    void check_runs(const Step& step, const Span& span) const;
    // A pass runs stages over a part of the wanted rows.
    void begin_pass(int first_stage, int last_stage, int first_row, int row_count);
    void run_pass(int first_stage, int last_stage, int first_row, int row_count);
    void finish_passes();

    static int64_t next_number();

    const int64_t number_ = next_number();  // of all programs of the process
    ThreadPool& pool_;
    const Kernels& kernels_;
    std::vector<std::shared_ptr<KvCache>> caches_;
    std::shared_ptr<FixedStates> states_;
    std::vector<int> windows_;  // positions seen in each cache at most; 0 for all
    int max_tokens_, max_rows_;
    int vocabulary_ = 0;  // rows of the largest embedding table
    int axes_ = 0;        // of rotations by places
    int run_kinds_ = 0;   // of runs that attention sees
    int seen_width_ = 0;  // columns of rows of pictures
    int fold_ = 1;        // rows that a wanted row takes
    int logits_width_ = 0;
    int pooled_width_ = 0;
    int rows_begin_ = 0;                // the first stage over rows
    int logits_begin_ = 0;              // the first stage that pooled rows skip
    int64_t max_position_ = INT32_MAX;  // positions of the shortest table but those of ropes
    std::vector<Buffer> buffers_;
    std::vector<RopeTable> ropes_;
    std::vector<PositionBias> biases_;
    std::vector<std::unique_ptr<Instruction>> instructions_;
    std::vector<int> stages_;                              // the first instruction of each
    std::unordered_map<const Matrix*, Site> sites_;        // the matrices that adapters may change
    std::unordered_map<const Matrix*, Site> table_sites_;  // and the tables
    int site_count_ = 0;
    // Of the last matmul. They follow it, after what may share a stage with it.
    std::vector<std::unique_ptr<Instruction>> waiting_;
    AdapterPlan adapters_;             // of the current step
    std::vector<LineFloats> scratch_;  // per thread, for mixers
    ExpertRows expert_rows_;           // of the expert layer that runs
    bool causal_ = true;               // whether all attention is
    Step* step_ = nullptr;
    std::vector<int32_t> wanted_;  // token rows of the step: sampled, then scored, then pooled
    int first_stage_ = 0, last_stage_ = 0;  // of the pass
    int first_row_ = 0, row_count_ = 0;     // of the pass, among those wanted
    std::vector<Candidates> candidates_;    // per thread, for scores
    StorePlan stores_;                      // of the current step, as the next
    std::vector<AttentionPlan> plans_;      // by number of groups of heads
    LineFloats parts_;                      // running sums of the splits of one attention
    Clock::time_point begun_, left_;        // when `begin` was called, and when it returned
    std::atomic<double> seconds_{0.0};
    std::atomic<bool> abandoned_{false};
    bool profiling_ = false;
    std::vector<double> nanoseconds_;  // per instruction
};

}  // namespace heddle
