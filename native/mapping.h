#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace heddle {

// Anonymous memory of whole pages, zeroed, in huge pages if the system takes that hint. A head's
// part of a KV page is a few KiB. With small memory pages each part costs TLB misses and restarts
// the prefetcher.
class Mapping {
  public:
    Mapping() = default;
    // Throws std::bad_alloc. No bytes: no memory.
    explicit Mapping(size_t bytes);
    ~Mapping();
    Mapping(Mapping&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    // Lets the system take untouched pages from these memory nodes in turn. One thread touches the
    // pages of a KV cache first, and threads of all nodes read them. Nothing happens where the
    // system refuses: containers often forbid this.
    void spread_over(uint64_t nodes);

    uint8_t* base() const { return base_; }
    size_t bytes() const { return bytes_; }

  private:
    uint8_t* base_ = nullptr;
    size_t bytes_ = 0;
};

// The memory nodes that a list of the system such as "0-1,3" has: bit i for node i below 64. None
// if the text is something else.
uint64_t nodes_in(const char* list);
// The nodes of this machine that have memory.
uint64_t memory_nodes();

// Zeros of trivial type in a mapping: they take no memory, and no time, until something is written.
template <typename T>
class MappedArray {
  public:
    MappedArray() = default;
    explicit MappedArray(size_t size) : memory_(size * sizeof(T)), size_(size) {}
    T* data() { return reinterpret_cast<T*>(memory_.base()); }
    const T* data() const { return reinterpret_cast<const T*>(memory_.base()); }
    size_t size() const { return size_; }

  private:
    Mapping memory_;
    size_t size_ = 0;
};

}  // namespace heddle
