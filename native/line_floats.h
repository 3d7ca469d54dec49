// Floats and bytes aligned to a cache line, so that no vector crosses a line when it is loaded or
// stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace heddle {

constexpr int kLineFloats = 16;

template <typename T>
struct LineAllocator {
    using value_type = T;

    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}

    T* allocate(size_t count) { return static_cast<T*>(operator new(count * sizeof(T), kLine)); }
    void deallocate(T* p, size_t) { operator delete(p, kLine); }

    template <typename U>
    bool operator==(const LineAllocator<U>&) const {
        return true;
    }
    template <typename U>
    bool operator!=(const LineAllocator<U>&) const {
        return false;
    }

  private:
    static constexpr std::align_val_t kLine{kLineFloats * sizeof(float)};
};

using LineFloats = std::vector<float, LineAllocator<float>>;
using LineBytes = std::vector<uint8_t, LineAllocator<uint8_t>>;

}  // namespace heddle
