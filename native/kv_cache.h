// Pages of keys and values in f16: one page holds 32 tokens of every layer.
//
// A page is contiguous, (layers, kv_heads, 2, head_dim * 32), so that copying or storing one is a
// single run of bytes. Keys lie transposed, (head_dim, 32): sixteen positions load as one vector
// and a score needs no sum across lanes. Values lie (32, head_dim). Memory is mapped, not touched:
// pages cost nothing until they are written.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace heddle {

// Elements of the widest attention head served.
constexpr int kWidestHead = 512;

class KvCache {
  public:
    // Throws std::bad_alloc.
    KvCache(int layers, int kv_heads, int head_dim, int64_t pages);
    ~KvCache();
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    int64_t pages() const { return pages_; }
    int64_t page_bytes() const { return page_halves_ * 2; }
    int64_t page_stride() const { return page_halves_; }  // in f16 values
    // Makes `target` hold what `source` holds. Throws std::invalid_argument: no such pages.
    void copy(int64_t source, int64_t target);
    int kv_heads() const { return kv_heads_; }
    int head_dim() const { return head_dim_; }
    uint16_t* at(int64_t page, int layer, int head) {
        return base_ + page * page_halves_ +
               (static_cast<int64_t>(layer) * kv_heads_ + head) * head_halves_;
    }

  private:
    int kv_heads_, head_dim_;
    int64_t pages_, head_halves_, page_halves_;
    uint16_t* base_;
};

}  // namespace heddle
