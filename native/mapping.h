#pragma once

#include <cstddef>

namespace heddle {

// Anonymous memory of whole pages, zeroed, in huge pages where the system takes that hint: a head's
// part of a page is a few KiB, and with small pages each part costs TLB misses and restarts the
// prefetcher. Throws std::bad_alloc.
void* map_memory(size_t bytes);
void unmap_memory(void* base, size_t bytes);

}  // namespace heddle
