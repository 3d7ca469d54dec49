// Weights in memory: rows of a file dequantised, matrices packed into panels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace heddle {

// The format of GGUF's tensor type number `file_type`. Throws std::invalid_argument when no kernel
// reads it.
Format format_of(int file_type);
bool has_kernel(int file_type);
// Bytes of one row of `columns` values in the file. Throws std::invalid_argument when the columns
// are not whole (super-)blocks.
int64_t row_bytes(Format format, int columns);
// One row to float32, as the file format defines it.
void dequantise_row(Format format, const uint8_t* row, int columns, float* out);

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
    // `raw` holds rows * row_bytes bytes in file order and is not needed afterwards. If it is
    // `mapped` from a file, its pages are given back as they are packed, so that a model is never
    // in memory twice; they come back if they are read again.
    Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, Format format,
           const uint8_t* raw, bool mapped, int rows, int columns, std::vector<float> bias);
    const PackedMatrix& packed() const { return packed_; }
    int panels() const;
    int64_t bytes() const { return packed_.panel_bytes * panels(); }

  private:
    void pack(ThreadPool& pool, const uint8_t* raw, int64_t raw_row, int first_panel,
              int last_panel, uint8_t* out) const;

    std::vector<float> bias_;
    int panel_rows_;
    PackedMatrix packed_;
};

}  // namespace heddle
