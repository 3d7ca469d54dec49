#include "mapping.h"

#include <sys/mman.h>

#include <new>

namespace heddle {

Mapping::Mapping(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(base, bytes, MADV_HUGEPAGE);  // a hint of Linux; a refusal only costs speed
#endif
    base_ = static_cast<uint8_t*>(base);
}

Mapping::~Mapping() {
    if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace heddle
