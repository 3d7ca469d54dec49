#include "storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "simd.h"

namespace heddle {

namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;

struct Layout {
    Format format;
    int block_values;
    int block_bytes;
    int scale_halves;  // f16 values before the codes of a block
};

Layout layout_of(FileType type) {
    switch (type) {
        case FileType::kF32:
            return {Format::kF32, 1, 4, 0};
        case FileType::kF16:
            return {Format::kF16, 1, 2, 0};
        case FileType::kBF16:
            return {Format::kBF16, 1, 2, 0};
        case FileType::kQ4_0:
            return {Format::kQ4Offset, kBlock, 18, 1};
        case FileType::kQ4_1:
            return {Format::kQ4Min, kBlock, 20, 2};
        case FileType::kQ8_0:
            return {Format::kQ8Offset, kBlock, 34, 1};
    }
    throw std::invalid_argument("tensor type " + std::to_string(static_cast<int>(type)) +
                                " has no kernel");
}

uint16_t half_bits(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

// Unsigned code of value i of a quantised block, without its offset.
int code_of(Format format, const uint8_t* codes, int i) {
    if (format == Format::kQ8Offset) return static_cast<int8_t>(codes[i]) + 128;
    return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
}

// One block of panel_rows rows: scales, minima, then groups of four columns. Four-bit codes of
// groups 2p and 2p + 1 share bytes: the first in the low half.
void pack_block(const Layout& layout, const uint8_t* const* rows, int panel_rows, uint8_t* out) {
    for (int h = 0; h < layout.scale_halves; ++h) {
        for (int r = 0; r < panel_rows; ++r, out += 2) {
            if (rows[r]) std::memcpy(out, rows[r] + h * 2, 2);
        }
    }
    const bool four_bit = layout.format != Format::kQ8Offset;
    for (int r = 0; r < panel_rows; ++r) {
        if (!rows[r]) continue;  // scales stay zero, so codes do not matter
        const uint8_t* codes = rows[r] + layout.scale_halves * 2;
        for (int i = 0; i < kBlock; ++i) {
            const int group = i / 4;
            const int code = code_of(layout.format, codes, i);
            if (four_bit) {
                out[group / 2 * panel_rows * 4 + r * 4 + i % 4] |=
                    static_cast<uint8_t>(code << (group % 2 * 4));
            } else {
                out[group * panel_rows * 4 + r * 4 + i % 4] = static_cast<uint8_t>(code);
            }
        }
    }
}

void pack_quantised_panel(const Layout& layout, const uint8_t* raw, int64_t raw_row, int rows,
                          int columns, int panel_rows, uint8_t* out) {
    const int code_bytes = panel_rows * (layout.format == Format::kQ8Offset ? kBlock : kBlock / 2);
    const int out_block = layout.scale_halves * 2 * panel_rows + code_bytes;
    std::vector<const uint8_t*> at(static_cast<size_t>(panel_rows), nullptr);
    for (int b = 0; b < columns / kBlock; ++b) {
        for (int r = 0; r < rows; ++r) at[r] = raw + r * raw_row + b * layout.block_bytes;
        pack_block(layout, at.data(), panel_rows, out + static_cast<int64_t>(b) * out_block);
    }
}

void pack_float_panel(int width, const uint8_t* raw, int64_t raw_row, int rows, int columns,
                      int panel_rows, uint8_t* out) {
    for (int64_t k = 0; k < columns; ++k) {
        for (int r = 0; r < rows; ++r) {
            std::memcpy(out + (k * panel_rows + r) * width, raw + r * raw_row + k * width,
                        static_cast<size_t>(width));
        }
    }
}

}  // namespace

bool has_kernel(int file_type) {
    for (FileType type : {FileType::kF32, FileType::kF16, FileType::kBF16, FileType::kQ4_0,
                          FileType::kQ4_1, FileType::kQ8_0}) {
        if (static_cast<int>(type) == file_type) return true;
    }
    return false;
}

int64_t row_bytes(FileType type, int columns) {
    const Layout layout = layout_of(type);
    if (columns % layout.block_values != 0) {
        throw std::invalid_argument(std::to_string(columns) + " columns are not whole blocks of " +
                                    std::to_string(layout.block_values));
    }
    return static_cast<int64_t>(columns / layout.block_values) * layout.block_bytes;
}

void dequantise_row(FileType type, const uint8_t* row, int columns, float* out) {
    const Layout layout = layout_of(type);
    switch (layout.format) {
        case Format::kF32:
            std::memcpy(out, row, static_cast<size_t>(columns) * 4);
            return;
        case Format::kF16:
            for (int i = 0; i < columns; ++i) out[i] = half_to_float(half_bits(row + i * 2));
            return;
        case Format::kBF16:
            for (int i = 0; i < columns; ++i) {
                out[i] = bits_float(static_cast<uint32_t>(half_bits(row + i * 2)) << 16);
            }
            return;
        default:
            break;
    }
    const int offset = layout.format == Format::kQ4Min      ? 0
                       : layout.format == Format::kQ4Offset ? 8
                                                            : 128;
    for (int b = 0; b < columns / kBlock; ++b, row += layout.block_bytes) {
        const float d = half_to_float(half_bits(row));
        const float m = layout.scale_halves == 2 ? half_to_float(half_bits(row + 2)) : 0.0f;
        const uint8_t* codes = row + layout.scale_halves * 2;
        for (int i = 0; i < kBlock; ++i) {
            out[b * kBlock + i] =
                d * static_cast<float>(code_of(layout.format, codes, i) - offset) + m;
        }
    }
}

Arena::~Arena() {
    for (const Chunk& chunk : chunks_) munmap(chunk.base, static_cast<size_t>(chunk.size));
}

uint8_t* Arena::allocate(int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().size) {
        const int64_t size = std::max(bytes, kChunkBytes);
        void* base = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        madvise(base, static_cast<size_t>(size),
                MADV_HUGEPAGE);  // a hint; refusal costs speed only
        chunks_.push_back({static_cast<uint8_t*>(base), size, 0});
    }
    Chunk& chunk = chunks_.back();
    uint8_t* at = chunk.base + chunk.used;
    chunk.used += bytes;
    allocated_ += bytes;
    return at;
}

Matrix::Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, FileType type,
               const uint8_t* raw, int rows, int columns, std::vector<float> bias)
    : bias_(std::move(bias)), panel_rows_(kernels.panel_rows) {
    const Layout layout = layout_of(type);
    const int64_t raw_row = row_bytes(type, columns);
    if (!bias_.empty() && static_cast<int>(bias_.size()) != rows) {
        throw std::invalid_argument("bias has another length than the matrix has rows");
    }
    packed_ = {layout.format,         rows,    columns,
               raw_row * panel_rows_, nullptr, bias_.empty() ? nullptr : bias_.data()};
    uint8_t* out = arena.allocate(bytes());
    packed_.panels = out;
    pool.parallel_for(panels(), [&](int panel) {
        const int first = panel * panel_rows_;
        const int count = std::min(panel_rows_, rows - first);
        const uint8_t* from = raw + first * raw_row;
        uint8_t* to = out + panel * packed_.panel_bytes;
        if (is_quantised(layout.format)) {
            pack_quantised_panel(layout, from, raw_row, count, columns, panel_rows_, to);
        } else {
            pack_float_panel(layout.block_bytes, from, raw_row, count, columns, panel_rows_, to);
        }
    });
}

int Matrix::panels() const { return (packed_.rows + panel_rows_ - 1) / panel_rows_; }

}  // namespace heddle
