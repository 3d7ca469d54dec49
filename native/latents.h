// Latents of one page and layer: their layout in memory for each KV type, and scores with them.
//
// A position has one vector for all heads: the latent, which is the value, and then a rotated key.
// Vectors are stored as values are, (32, head_dim), one copy for scores and for sums of values. A
// score is a sum over sixteen lanes of a chain of products. (Transposed keys, as kv_parts.h has
// them, would need a second copy: a page would be twice as large.) Where a few queries share a
// vector that is loaded and converted, the sums over lanes cost little: 36 products of sixteen
// lanes come before each in a vector of 576 elements.
#pragma once

#include "attention_tile.h"
#include "formats.h"
#include "kernels.h"
#include "quantise.h"
#include "simd.h"

namespace {

using namespace heddle;

struct F16Latents {
    static constexpr KvType kType = KvType::kF16;
    static constexpr bool kScaled = false, kLatents = true;

    F16Latents(const uint8_t* part, int head_dim)
        : halves_(reinterpret_cast<const uint16_t*>(part)), head_dim_(head_dim) {}

    // Sixteen elements, d and after, of one position.
    V16 vector(int position, int d) const { return load_f16(halves_ + position * head_dim_ + d); }
    V16 values(int position, int d) const { return vector(position, d); }

    // Stores the vector x (head_dim,).
    static void put(uint8_t* part, int head_dim, int position, const float* x) {
        uint16_t* halves = reinterpret_cast<uint16_t*>(part) + position * head_dim;
        for (int d = 0; d < head_dim; d += 16) store_f16(halves + d, load(x + d));
    }

  private:
    const uint16_t* halves_;
    int head_dim_;
};

// Codes, then scales (head_dim / 32, 32).
struct Q8Latents {
    static constexpr KvType kType = KvType::kQ8_0;
    static constexpr bool kScaled = true, kLatents = true;

    Q8Latents(const uint8_t* part, int head_dim)
        : codes_(reinterpret_cast<const int8_t*>(part)),
          halves_(reinterpret_cast<const uint16_t*>(codes_ + kPageTokens * head_dim)),
          head_dim_(head_dim) {
        for (int i = 0; i < head_dim; i += 16) store(scales_ + i, load_f16(halves_ + i));
    }

    V16 vector(int position, int d) const {
        return values(position, d) * splat(scales_[d / kBlock * kPageTokens + position]);
    }
    // Codes; value_scales multiplies them.
    V16 values(int position, int d) const { return load_int8(codes_ + position * head_dim_ + d); }
    V16 value_scales(int block, int position) const {
        return load(scales_ + block * kPageTokens + position);
    }

    static void put(uint8_t* part, int head_dim, int position, const float* x) {
        int8_t* codes = reinterpret_cast<int8_t*>(part) + position * head_dim;
        uint16_t* halves = reinterpret_cast<uint16_t*>(part + kPageTokens * head_dim) + position;
        for (int d = 0; d < head_dim; d += kBlock) {
            uint16_t lanes[16];
            store_f16(lanes, splat(quantise_block(x + d, codes + d) / 127.0f));
            halves[d] = lanes[0];
        }
    }

  private:
    const int8_t* codes_;
    const uint16_t* halves_;
    int head_dim_;
    alignas(64) float scales_[kWidestHead];
};

// Adds x[i] times elements [from, to) of kWide positions to acc[i].
template <int N, typename Part>
inline void add_products(const float* const (&x)[N], const Part& part, int position, int from,
                         int to, V16 (&acc)[N][kWide], Prefetcher<Part>& prefetcher) {
    constexpr int kEvery = Prefetcher<Part>::kEvery;
    int steps = 0;
    for (int d = from; d < to; d += 16) {
        if (steps++ % kEvery == 0) prefetcher.step();
        V16 k[kWide];
        for (int j = 0; j < kWide; ++j) k[j] = part.vector(position + j, d);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            const V16 sixteen = load(x[i] + d - from);
            for (int j = 0; j < kWide; ++j) acc[i][j] = fma(sixteen, k[j], acc[i][j]);
        }
    }
}

// Scores of N queries: lanes sum products over the latent and then the rotated key.
template <int N, typename Part>
inline void page_scores_of_latents(QueryTile& tile, int first, int page, const Part& part,
                                   int head_dim, Prefetcher<Part>& prefetcher) {
    const float *q[N], *turned[N];
    for (int i = 0; i < N; ++i) {
        q[i] = tile.q[first + i];
        turned[i] = tile.turned[first + i];
    }
    for (int position = 0; position < kPageTokens; position += kWide) {
        V16 acc[N][kWide];
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < kWide; ++j) acc[i][j] = splat(0.0f);
        }
        add_products<N>(q, part, position, 0, tile.rank, acc, prefetcher);
        add_products<N>(turned, part, position, tile.rank, head_dim, acc, prefetcher);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            float* scores = page_weights(tile, first + i, page) + position;
            for (int j = 0; j < kWide; ++j) scores[j] = reduce_add(acc[i][j]);
        }
    }
}

template <typename Part>
inline void store_vectors(const StoreLatentArgs& a) {
    const int rest = a.head_dim - a.rank;
    alignas(64) float whole[kWidestHead];
    for (int i = 0; i < a.tokens; ++i) {
        std::memcpy(whole, a.latent + i * a.rank, sizeof(float) * static_cast<size_t>(a.rank));
        std::memcpy(whole + a.rank, a.key + i * rest, sizeof(float) * static_cast<size_t>(rest));
        Part::put(a.part, a.head_dim, a.position + i, whole);
    }
}

void store_latents(const StoreLatentArgs& a) {
    a.kv_type == KvType::kF16 ? store_vectors<F16Latents>(a) : store_vectors<Q8Latents>(a);
}

}  // namespace
