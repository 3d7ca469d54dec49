// Tensors as files store them: dequantised rows, and packing into panels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace heddle {

// GGUF's numbering of tensor types, those that have a kernel here.
enum class FileType : int {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ8_0 = 8,
    kBF16 = 30,
};

bool has_kernel(int file_type);
// Bytes of one row of `columns` values. Throws std::invalid_argument when the type has no kernel
// or the columns are not whole blocks.
int64_t row_bytes(FileType type, int columns);
// One row to float32; the same arithmetic as the file format defines.
void dequantise_row(FileType type, const uint8_t* row, int columns, float* out);

// Memory for packed weights: anonymous maps with transparent huge pages, since panels are read end
// to end and 4 KiB pages would cost a TLB miss every few hundred nanoseconds.
class Arena {
  public:
    Arena() = default;
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    // 64-byte aligned, zeroed. Throws std::bad_alloc.
    uint8_t* allocate(int64_t bytes);
    int64_t allocated() const { return allocated_; }

  private:
    struct Chunk {
        uint8_t* base;
        int64_t size;
        int64_t used;
    };
    std::vector<Chunk> chunks_;
    int64_t allocated_ = 0;
};

// A packed matrix together with the bias it owns.
class Matrix {
  public:
    // `raw` holds rows * row_bytes bytes in file order and is not needed afterwards.
    Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, FileType type,
           const uint8_t* raw, int rows, int columns, std::vector<float> bias);
    const PackedMatrix& packed() const { return packed_; }
    int panels() const;
    int64_t bytes() const { return packed_.panel_bytes * panels(); }

  private:
    std::vector<float> bias_;
    int panel_rows_;
    PackedMatrix packed_;
};

}  // namespace heddle
