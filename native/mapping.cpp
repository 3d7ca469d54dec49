#include "mapping.h"

#include <sys/mman.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

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

void Mapping::spread_over(uint64_t nodes) {
#if defined(__linux__)
    constexpr int kInterleave = 3;  // MPOL_INTERLEAVE, whose header comes with libnuma
    if (base_ != nullptr) syscall(SYS_mbind, base_, bytes_, kInterleave, &nodes, 65, 0);
#else
    (void)nodes;
#endif
}

uint64_t nodes_in(const char* list) {
    uint64_t nodes = 0;
    while (*list >= '0' && *list <= '9') {
        char* end;
        const unsigned long first = std::strtoul(list, &end, 10);
        const unsigned long last = *end == '-' ? std::strtoul(end + 1, &end, 10) : first;
        for (unsigned long node = first; node <= last && node < 64; ++node) nodes |= 1ull << node;
        list = *end == ',' ? end + 1 : end;
    }
    return *list == '\0' ? nodes : 0;
}

uint64_t memory_nodes() {
    std::ifstream file("/sys/devices/system/node/has_memory");
    std::string list;
    std::getline(file, list);
    return nodes_in(list.c_str());
}

}  // namespace heddle
