#include "mapping.h"

#include <sys/mman.h>

#include <new>

namespace heddle {

void* map_memory(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(base, bytes, MADV_HUGEPAGE);  // a hint, which only Linux has; refusal costs speed only
#endif
    return base;
}

void unmap_memory(void* base, size_t bytes) { munmap(base, bytes); }

}  // namespace heddle
