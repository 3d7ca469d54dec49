// A maker for each kind of instruction. Only Program calls the makers, after it has checked the
// arguments. Buffers and rope tables are given by number.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"

namespace heddle {

class Instruction;
class Program;
enum class Lookups;
struct AttentionShape;
struct CompressedAttention;
struct Compression;
struct Convolution;
struct ExpertLayer;
struct ExpertSites;
struct LinearAttention;
struct MatmulPart;
struct Scan;
struct StreamMixing;
struct RwkvAttention;
struct Shift;
using InstructionPointer = std::unique_ptr<Instruction>;

// row_instructions.cpp
InstructionPointer make_embed(std::shared_ptr<const Matrix> table, int out, Lookups by, int first);
// What adapters change in the rows that tokens are looked up in, after `make_embed`.
InstructionPointer make_embed_changes(int site, int out);
InstructionPointer make_embed_segments(std::shared_ptr<const Matrix> table, int separator, int out);
InstructionPointer make_embed_previous(std::shared_ptr<const Matrix> table, int start, int out);
InstructionPointer make_mean_rows(int in, int out);
InstructionPointer make_norm(int in, std::vector<float> weight, float eps, int out, bool quantise);
InstructionPointer make_layer_norm(int in, std::vector<float> weight, std::vector<float> bias,
                                   float eps, int out, bool quantise);
InstructionPointer make_quantise(int in);
InstructionPointer make_norm_heads(int in, std::vector<float> weight, float eps, int heads);
InstructionPointer make_scale(int in, float factor);
InstructionPointer make_soft_cap(int in, float cap);
// Computes steps of more than `above` rows only.
InstructionPointer make_gated(Activation activation, int gate, int up, int out, bool quantise,
                              int above);
InstructionPointer make_gate_rows(Activation activation, int x, int gate, int out);
InstructionPointer make_mix_heads(int x, int factors, int heads, int out);
InstructionPointer make_add(int x, int y, int out);
InstructionPointer make_take_rows(int in, int out);
InstructionPointer make_take_columns(int in, int first, int heads, int out);
InstructionPointer make_activate(Map map, int in, bool quantise);
InstructionPointer make_step_size(int in, std::vector<float> bias, float least, float most);
InstructionPointer make_decay(int in, std::vector<float> rates, int out);
InstructionPointer make_join(int x, int y, int out);
InstructionPointer make_rope(int in, int table, int heads, int first, std::vector<int> axes);
InstructionPointer make_see(int in, int first, bool adds);
InstructionPointer make_sample(int logits);

// readout_instructions.cpp
InstructionPointer make_score(int logits);
InstructionPointer make_pool(int states);

// matmul_instruction.cpp
// Packs the quantised copy of a buffer for the matmuls that follow, where they are of many tokens.
InstructionPointer make_pack(int in);
InstructionPointer make_matmul(int in, std::vector<MatmulPart> parts, bool accumulate);
// Gates the columns of a matmul's item in steps of at most this many rows. In longer steps, each
// row is gated as a whole: 512 rows of 128 columns took twice as long as the same rows in one
// piece.
constexpr int kGateColumnsRows = 16;
// Null unless `before` is a matmul that computes `gate` and `up`, and can be cut by their columns.
InstructionPointer make_gate_columns(const Program& p, Instruction* before, Activation activation,
                                     int gate, int up, int out, bool quantise);

// adapter_instructions.cpp
// What the adapters of some rows add to a matmul of `in`, after it.
std::vector<InstructionPointer> make_adapters(int in, std::vector<AdaptedPart> parts);

// expert_instructions.cpp
std::vector<InstructionPointer> make_experts(std::shared_ptr<const ExpertLayer> layer,
                                             const ExpertSites& sites, int in, int logits, int out);

// recurrent_instructions.cpp
InstructionPointer make_conv(Convolution shape);
InstructionPointer make_linear_attend(LinearAttention shape);
InstructionPointer make_selective_scan(Scan shape, int channels);
InstructionPointer make_token_shift(Shift shape);
InstructionPointer make_rwkv_attend(RwkvAttention shape);

// compressed_instructions.cpp
InstructionPointer make_compress(Compression shape);
InstructionPointer make_attend_compressed(CompressedAttention shape);

// stream_instructions.cpp
InstructionPointer make_stream_weights(StreamMixing shape);
InstructionPointer make_collapse(int streams, int weights, int out);
InstructionPointer make_expand(int streams, int result, int weights, int out);
InstructionPointer make_keep_listed(int in, std::vector<int32_t> table, int listed, int out);

// attention_instructions.cpp
InstructionPointer make_store_kv(int k, int v, int layer, int cache);
InstructionPointer make_store_latents(int latent, int key, int layer, int cache);
InstructionPointer make_attend(AttentionShape shape);
// Merges the splits of attend; does nothing if there are none.
InstructionPointer make_attend_merge(AttentionShape shape);

}  // namespace heddle
