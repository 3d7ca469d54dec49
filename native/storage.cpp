#include "storage.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "file_blocks.h"
#include "panels.h"

namespace heddle {

namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;
// File bytes that a thread reads and packs at a time; they fit its second-level cache.
constexpr int64_t kPackBytes = int64_t{256} << 10;

}  // namespace

bool has_encoder(int file_type) {
    const FormatRow* row = find_format(file_type);
    return row && row->write.exists;
}

bool has_kernel(int file_type) { return find_format(file_type) != nullptr; }

Format format_of(int file_type) {
    const FormatRow* row = find_format(file_type);
    if (row) return row->format;
    throw std::invalid_argument("tensor type " + std::to_string(file_type) + " has no kernel");
}

int64_t row_bytes(Format format, int columns) {
    const int values = layout_of(format).columns();
    if (columns % values != 0) {
        throw std::invalid_argument(std::to_string(columns) + " columns are not whole blocks of " +
                                    std::to_string(values));
    }
    return static_cast<int64_t>(columns / values) * file_block_bytes(format);
}

const uint8_t* TensorBytes::fetch(int64_t from, int64_t bytes,
                                  std::unique_ptr<uint8_t[]>& scratch) const {
    if (memory_) return memory_ + from;
    scratch.reset(new uint8_t[static_cast<size_t>(bytes)]);
    for (int64_t done = 0; done < bytes;) {
        const int64_t at = offset_ + from + done;
        const ssize_t got =
            pread(file_, scratch.get() + done, static_cast<size_t>(bytes - done), at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw std::runtime_error(std::strerror(errno));
        if (got == 0) throw std::runtime_error("the file ends at byte " + std::to_string(at));
        done += got;
    }
    return scratch.get();
}

uint8_t* Arena::allocate(int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    const auto room = [](const Chunk& chunk) {
        return static_cast<int64_t>(chunk.memory.bytes()) - chunk.used;
    };
    if (chunks_.empty() || room(chunks_.back()) < bytes) {
        chunks_.push_back({Mapping(static_cast<size_t>(std::max(bytes, kChunkBytes))), 0});
    }
    Chunk& chunk = chunks_.back();
    uint8_t* at = chunk.memory.base() + chunk.used;
    chunk.used += bytes;
    allocated_ += bytes;
    return at;
}

namespace {

void check_encoding(Format format, Format stored) {
    const int number = static_cast<int>(format);
    if (has_encoder(number) && !is_quantised(stored)) return;
    throw std::invalid_argument("tensor type " + std::to_string(static_cast<int>(stored)) +
                                " cannot be quantised to type " + std::to_string(number));
}

}  // namespace

int quantise_rows(ThreadPool& pool, const Kernels& kernels, Format format, Format stored,
                  const TensorBytes& raw, int rows, int columns, const float* importance,
                  uint8_t* out) {
    check_encoding(format, stored);
    const int64_t raw_row = row_bytes(stored, columns), out_row = row_bytes(format, columns);
    const int batch = static_cast<int>(std::max<int64_t>(1, kPackBytes / raw_row));  // rows
    const Writer write = find_format(static_cast<int>(format))->write.function;
    std::atomic<int> non_finite{-1};
    pool.parallel_for((rows + batch - 1) / batch, [&](int item) {
        const int first = item * batch, last = std::min(first + batch, rows);
        std::unique_ptr<uint8_t[]> scratch;
        const uint8_t* from = raw.fetch(first * raw_row, (last - first) * raw_row, scratch);
        RowEncoder encoder(kernels, format, stored, columns, importance);
        std::vector<FileBlock> blocks(static_cast<size_t>(encoder.blocks()));
        for (int row = first; row < last; ++row, from += raw_row) {
            if (!encoder.encode(from, blocks.data())) non_finite.store(row);
            uint8_t* to = out + row * out_row;
            for (const FileBlock& block : blocks) {
                write(block, to);
                to += file_block_bytes(format);
            }
        }
    });
    return non_finite.load();
}

Matrix::Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, Format format,
               const TensorBytes& raw, int rows, int columns, std::vector<float> bias,
               std::optional<Format> stored)
    : bias_(std::move(bias)), panel_rows_(kernels.panel_rows) {
    const int64_t raw_row = row_bytes(format, columns);
    if (stored && *stored != format) check_encoding(format, *stored);
    if (!bias_.empty() && static_cast<int>(bias_.size()) != rows) {
        throw std::invalid_argument("bias has another length than the matrix has rows");
    }
    const int64_t packed_row = is_quantised(format) ? columns / layout_of(format).columns() *
                                                          int64_t{layout_of(format).super_block()}
                                                    : raw_row;
    packed_ = {format,  rows,
               columns, packed_row * panel_rows_,
               nullptr, bias_.empty() ? nullptr : bias_.data()};
    uint8_t* out = arena.allocate(bytes());
    packed_.panels = out;
    pack(pool, kernels, stored.value_or(format), raw, out);
}

void Matrix::pack(ThreadPool& pool, const Kernels& kernels, Format stored, const TensorBytes& raw,
                  uint8_t* out) {
    const PackedMatrix& m = packed_;
    const int64_t raw_row = row_bytes(stored, m.columns);
    const int batch =
        static_cast<int>(std::max<int64_t>(1, kPackBytes / (raw_row * panel_rows_)));  // panels
    std::atomic<int> non_finite{-1};
    pool.parallel_for((panels() + batch - 1) / batch, [&](int item) {
        const int first = item * batch, last = std::min(first + batch, panels());
        const int first_row = first * panel_rows_, last_row = std::min(last * panel_rows_, m.rows);
        std::unique_ptr<uint8_t[]> scratch;
        const uint8_t* from =
            raw.fetch(first_row * raw_row, (last_row - first_row) * raw_row, scratch);
        for (int panel = first; panel < last; ++panel, from += panel_rows_ * raw_row) {
            const int row = panel * panel_rows_, count = std::min(panel_rows_, m.rows - row);
            uint8_t* to = out + panel * m.panel_bytes;
            const int found =
                stored == m.format
                    ? pack_panel(m.format, from, raw_row, count, m.columns, panel_rows_, to)
                    : pack_encoded_panel(kernels, m.format, stored, from, raw_row, count, m.columns,
                                         to);
            if (found >= 0) non_finite.store(row + found, std::memory_order_relaxed);
        }
    });
    non_finite_row_ = non_finite.load();
}

void Matrix::dequantise_row(int row, float* out) const {
    const PackedMatrix& m = packed_;
    const uint8_t* panel = m.panels + row / panel_rows_ * m.panel_bytes;
    read_panel_row(m.format, panel, panel_rows_, row % panel_rows_, m.columns, out);
}

int Matrix::panels() const { return (packed_.rows + panel_rows_ - 1) / panel_rows_; }

}  // namespace heddle
