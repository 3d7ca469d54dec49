// Pages of keys and values: one page holds 32 tokens of every layer.
//
// A page is contiguous: (layers, kv_heads) parts, which kv_parts.h and latents.h describe. So a
// copy of a page is one run of bytes. The system maps all memory, but only used pages and some
// memory after them become resident.
#pragma once

#include <cstdint>
#include <memory>

#include "fault_ahead.h"
#include "kernels.h"
#include "mapping.h"

namespace heddle {

class KvCache {
  public:
    // Throws std::bad_alloc; std::system_error: no thread provides memory ahead;
    // std::invalid_argument: the type cannot hold heads of that size.
    KvCache(KvType type, int layers, int kv_heads, int head_dim, int64_t pages,
            bool has_values = true);
    int64_t pages() const { return pages_; }
    static int64_t page_bytes(KvType type, int layers, int kv_heads, int head_dim,
                              bool has_values) {
        return kv_part_bytes(type, head_dim, has_values) * layers * kv_heads;
    }
    int64_t page_bytes() const { return page_bytes_; }
    KvType type() const { return type_; }
    // Copies the content of `source` to `target`. Throws std::invalid_argument: no such pages.
    void copy(int64_t source, int64_t target);
    // Copy a page's page_bytes() bytes out and in. Throw std::invalid_argument: no such page.
    void read(int64_t page, uint8_t* bytes);
    void write(int64_t page, const uint8_t* bytes);
    // Call this before a step writes to the page.
    void reached(int64_t page) {
        if (ahead_) ahead_->reached((page + 1) * page_bytes_);
    }
    int layers() const { return layers_; }
    int kv_heads() const { return kv_heads_; }
    int head_dim() const { return head_dim_; }
    // Without values, the first elements of keys are the values: keys are latents.
    bool has_values() const { return has_values_; }
    uint8_t* at(int64_t page, int layer, int head) {
        return memory_.base() + page * page_bytes_ +
               (static_cast<int64_t>(layer) * kv_heads_ + head) * part_bytes_;
    }

  private:
    void check(int64_t page) const;

    KvType type_;
    int layers_, kv_heads_, head_dim_;
    bool has_values_;
    int64_t pages_, part_bytes_, page_bytes_;
    Mapping memory_;
    std::unique_ptr<FaultAhead> ahead_;  // of memory_, and ends before it
};

}  // namespace heddle
