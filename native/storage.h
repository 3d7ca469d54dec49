// Weights in memory: packs a file's matrices into panels, and dequantises their rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels.h"
#include "mapping.h"
#include "thread_pool.h"

namespace heddle {

// The format of GGUF's tensor type number `file_type`. Throws std::invalid_argument when no kernel
// reads it.
Format format_of(int file_type);
bool has_kernel(int file_type);
// Whether floats can be quantised to the type.
bool has_encoder(int file_type);
// Bytes of one row of `columns` values in the file. Throws std::invalid_argument when the columns
// are not whole (super-)blocks.
int64_t row_bytes(Format format, int columns);

// The bytes of a tensor, in memory or in an open file. A file is read and never mapped: after a
// truncation of a mapped file, the next access would kill the process.
class TensorBytes {
  public:
    explicit TensorBytes(const uint8_t* memory) : memory_(memory) {}
    TensorBytes(int file, int64_t offset) : file_(file), offset_(offset) {}
    // The bytes [from, from + bytes). Bytes of a file are read into `scratch`. Throws
    // std::runtime_error when the file ends too early, or cannot be read.
    const uint8_t* fetch(int64_t from, int64_t bytes, std::unique_ptr<uint8_t[]>& scratch) const;

  private:
    const uint8_t* memory_ = nullptr;
    int file_ = -1;
    int64_t offset_ = 0;
};

// Memory for packed weights: anonymous maps with transparent huge pages, since panels are read end
// to end and 4 KiB pages would cost a TLB miss every few hundred nanoseconds.
class Arena {
  public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    // 64-byte aligned, zeroed. Throws std::bad_alloc.
    uint8_t* allocate(int64_t bytes);
    int64_t allocated() const { return allocated_; }

  private:
    struct Chunk {
        Mapping memory;
        int64_t used;
    };
    std::vector<Chunk> chunks_;
    int64_t allocated_ = 0;
};

// A packed matrix together with the bias it owns.
class Matrix {
  public:
    // `raw` has rows * row_bytes bytes in file order and is not needed afterwards. The arena must
    // outlive the matrix. `stored`, where given, is the type of `raw`: floats, which are quantised.
    // Throws std::runtime_error if `raw` cannot be read.
    Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, Format format,
           const TensorBytes& raw, int rows, int columns, std::vector<float> bias,
           std::optional<Format> stored = std::nullopt);
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;
    const PackedMatrix& packed() const { return packed_; }
    int panels() const;
    int64_t bytes() const { return packed_.panel_bytes * panels(); }
    // A row with an infinite or NaN weight or block scale; -1 if there is none.
    int non_finite_row() const { return non_finite_row_; }
    // One row to float32, as the file format defines it.
    void dequantise_row(int row, float* out) const;

  private:
    void pack(ThreadPool& pool, const Kernels& kernels, Format stored, const TensorBytes& raw,
              uint8_t* out);

    std::vector<float> bias_;
    int panel_rows_;
    int non_finite_row_ = -1;
    PackedMatrix packed_;
};

// Quantises the floats of `raw`, of type `stored`, to rows of file bytes in `out`. `importance` has
// a weight for each column, or is null. Returns a row with a value that is not finite, -1 if there
// is none. Throws std::runtime_error when `raw` cannot be read.
int quantise_rows(ThreadPool& pool, const Kernels& kernels, Format format, Format stored,
                  const TensorBytes& raw, int rows, int columns, const float* importance,
                  uint8_t* out);

}  // namespace heddle
