#include "kv_cache.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace heddle {

KvCache::KvCache(KvType type, int layers, int kv_heads, int head_dim, int64_t pages,
                 bool has_values)
    : type_(type),
      layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      has_values_(has_values),
      pages_(pages),
      part_bytes_(kv_part_bytes(type, head_dim, has_values)),
      page_bytes_(page_bytes(type, layers, kv_heads, head_dim, has_values)) {
    const int unit = type == KvType::kF16 ? 16 : kBlock;
    if (head_dim % unit != 0 || head_dim > kWidestHead) {
        throw std::invalid_argument("head_dim must be a multiple of " + std::to_string(unit) +
                                    ", at most " + std::to_string(kWidestHead) + ", not " +
                                    std::to_string(head_dim));
    }
    if (type == KvType::kQ4 && !has_values) {
        throw std::invalid_argument("latents are not stored in q4");
    }
    const int64_t bytes = pages_ * page_bytes_;
    if (bytes == 0) return;  // no layers: nothing is stored
    memory_ = Mapping(static_cast<size_t>(bytes));
    const uint64_t nodes = memory_nodes();
    if ((nodes & (nodes - 1)) != 0) memory_.spread_over(nodes);  // there are several
    ahead_ = std::make_unique<FaultAhead>(memory_.base(), bytes);
}

void KvCache::copy(int64_t source, int64_t target) {
    if (source < 0 || source >= pages_ || target < 0 || target >= pages_ || source == target) {
        throw std::invalid_argument("a page is copied to another page of the cache");
    }
    std::memcpy(at(target, 0, 0), at(source, 0, 0), static_cast<size_t>(page_bytes()));
}

void KvCache::read(int64_t page, uint8_t* bytes) {
    check(page);
    std::memcpy(bytes, at(page, 0, 0), static_cast<size_t>(page_bytes()));
}

void KvCache::write(int64_t page, const uint8_t* bytes) {
    check(page);
    std::memcpy(at(page, 0, 0), bytes, static_cast<size_t>(page_bytes()));
}

void KvCache::check(int64_t page) const {
    if (page < 0 || page >= pages_) throw std::invalid_argument("no such page of the cache");
}

}  // namespace heddle
