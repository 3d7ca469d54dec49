#include "storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "file_blocks.h"
#include "simd.h"

namespace heddle {

namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;
// File bytes packed before their pages are given back: some milliseconds of work, small beside any
// model worth the trouble.
constexpr int64_t kPackBytes = int64_t{8} << 20;

// One block of every row of a panel, as `formats.h` describes it. Rows past the matrix's end stay
// zero: their scales are, so their codes do not matter.
class PanelWriter {
  public:
    PanelWriter(Format format, int panel_rows, uint8_t* out)
        : layout_(layout_of(format)), panel_rows_(panel_rows), out_(out) {}

    void write(const std::vector<FileBlock>& rows) {
        if (layout_.header() > 0) {
            for (size_t r = 0; r < rows.size(); ++r) put_half(r, rows[r].scale);
            if (layout_.minimum) {
                for (size_t r = 0; r < rows.size(); ++r) put_half(panel_rows_ + r, rows[r].minimum);
            }
        }
        out_ += layout_.header() * panel_rows_;
        for (int b = 0; b < layout_.blocks; ++b) {
            for (size_t r = 0; r < rows.size(); ++r) {
                write_scales(rows[r], b, static_cast<int>(r));
                write_codes(rows[r].codes + b * kBlock, static_cast<int>(r));
            }
            out_ += layout_.block() * panel_rows_;
        }
    }

  private:
    void put_half(size_t index, uint16_t bits) { std::memcpy(out_ + index * 2, &bits, 2); }

    void write_scales(const FileBlock& row, int block, int r) {
        if (layout_.scale == Scale::kHalf) {
            put_half(static_cast<size_t>(r), row.scale);
            if (layout_.minimum) put_half(static_cast<size_t>(panel_rows_ + r), row.minimum);
            return;
        }
        for (int part = 0; part < layout_.parts; ++part) {
            const int at = block * layout_.parts + part;
            uint8_t* scale = out_ + part * panel_rows_ + r;
            if (layout_.scale == Scale::kNibbles) {
                *scale = static_cast<uint8_t>(row.scales[at] | row.minima[at] << 4);
            } else {
                *scale = row.scales[at];
                if (layout_.minimum) scale[layout_.parts * panel_rows_] = row.minima[at];
            }
        }
    }

    void write_codes(const uint8_t* codes, int r) {
        uint8_t* low = out_ + layout_.scales() * panel_rows_;
        write_plane(codes, 0, layout_.low_bits, low + r * 4);
        if (layout_.high_bits > 0) {
            uint8_t* high = low + layout_.low() * panel_rows_;
            write_plane(codes, layout_.low_bits, layout_.high_bits, high + r * 4);
        }
    }

    // Bits [from, from + bits) of 32 codes, four columns at a time.
    void write_plane(const uint8_t* codes, int from, int bits, uint8_t* out) {
        const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
        const int groups = 8 / bits;  // in a byte
        for (int g = 0; g < kGroups; g += groups, out += panel_rows_ * 4) {
            uint32_t packed = 0;
            for (int k = 0; k < groups; ++k) {
                uint32_t four;
                std::memcpy(&four, codes + (g + k) * 4, 4);
                packed |= (four >> from & mask) << (k * bits);
            }
            std::memcpy(out, &packed, 4);
        }
    }

    Layout layout_;
    int panel_rows_;
    uint8_t* out_;
};

void pack_quantised_panel(Format format, const uint8_t* raw, int64_t raw_row, int rows, int columns,
                          int panel_rows, uint8_t* out) {
    const int width = layout_of(format).blocks * kBlock;
    PanelWriter writer(format, panel_rows, out);
    std::vector<FileBlock> blocks(static_cast<size_t>(rows));
    for (int b = 0; b < columns / width; ++b) {
        for (int r = 0; r < rows; ++r) {
            read_block(format, raw + r * raw_row + b * file_block_bytes(format),
                       blocks[static_cast<size_t>(r)]);
        }
        writer.write(blocks);
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

// Takes the whole pages of [from, to), which lie in a file's map, out of this process's memory.
void give_back(const uint8_t* from, const uint8_t* to) {
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(to) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void dequantise_block(Format format, const FileBlock& block, float* out) {
    const Layout layout = layout_of(format);
    const float scale = half_to_float(block.scale), minimum = half_to_float(block.minimum);
    for (int i = 0; i < layout.blocks * kBlock; ++i) {
        const int part = i * layout.parts / kBlock;
        float d = scale, m = minimum;
        if (layout.scale != Scale::kHalf) {
            const uint8_t factor = block.scales[part];
            d *= layout.signed_scale ? static_cast<float>(static_cast<int8_t>(factor))
                                     : static_cast<float>(factor);
            m *= layout.minimum ? static_cast<float>(block.minima[part]) : 0.0f;
        }
        const int code = layout.table ? kIq4Table[block.codes[i]] : block.codes[i];
        out[i] = d * static_cast<float>(code - layout.offset) + m;
    }
}

// Values of a row that are stored together.
int block_values(Format format) {
    return is_quantised(format) ? layout_of(format).blocks * kBlock : 1;
}

struct FileType {
    int number;  // GGUF's
    Format format;
};
constexpr FileType kFileTypes[] = {
    {0, Format::kF32},     {1, Format::kF16},     {2, Format::kQ4_0},  {3, Format::kQ4_1},
    {6, Format::kQ5_0},    {7, Format::kQ5_1},    {8, Format::kQ8_0},  {10, Format::kQ2_K},
    {11, Format::kQ3_K},   {12, Format::kQ4_K},   {13, Format::kQ5_K}, {14, Format::kQ6_K},
    {20, Format::kIQ4_NL}, {23, Format::kIQ4_XS}, {30, Format::kBF16},
};

}  // namespace

bool has_kernel(int file_type) {
    for (const FileType& type : kFileTypes) {
        if (type.number == file_type) return true;
    }
    return false;
}

Format format_of(int file_type) {
    for (const FileType& type : kFileTypes) {
        if (type.number == file_type) return type.format;
    }
    throw std::invalid_argument("tensor type " + std::to_string(file_type) + " has no kernel");
}

int64_t row_bytes(Format format, int columns) {
    const int values = block_values(format);
    if (columns % values != 0) {
        throw std::invalid_argument(std::to_string(columns) + " columns are not whole blocks of " +
                                    std::to_string(values));
    }
    return static_cast<int64_t>(columns / values) * file_block_bytes(format);
}

void dequantise_row(Format format, const uint8_t* row, int columns, float* out) {
    if (format == Format::kF32) {
        std::memcpy(out, row, static_cast<size_t>(columns) * 4);
    } else if (format == Format::kF16) {
        for (int i = 0; i < columns; ++i) out[i] = half_to_float(half_bits(row + i * 2));
    } else if (format == Format::kBF16) {
        for (int i = 0; i < columns; ++i) {
            out[i] = bits_float(static_cast<uint32_t>(half_bits(row + i * 2)) << 16);
        }
    } else {
        const int width = block_values(format);
        FileBlock block;
        for (int b = 0; b < columns / width; ++b) {
            read_block(format, row + b * file_block_bytes(format), block);
            dequantise_block(format, block, out + b * width);
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

Matrix::Matrix(Arena& arena, ThreadPool& pool, const Kernels& kernels, Format format,
               const uint8_t* raw, bool mapped, int rows, int columns, std::vector<float> bias)
    : bias_(std::move(bias)), panel_rows_(kernels.panel_rows) {
    const int64_t raw_row = row_bytes(format, columns);
    if (!bias_.empty() && static_cast<int>(bias_.size()) != rows) {
        throw std::invalid_argument("bias has another length than the matrix has rows");
    }
    const int64_t packed_row = is_quantised(format) ? columns / block_values(format) *
                                                          int64_t{layout_of(format).super_block()}
                                                    : raw_row;
    packed_ = {format,  rows,
               columns, packed_row * panel_rows_,
               nullptr, bias_.empty() ? nullptr : bias_.data()};
    uint8_t* out = arena.allocate(bytes());
    packed_.panels = out;
    const int64_t raw_panel = raw_row * panel_rows_;
    const int batch = static_cast<int>(std::max<int64_t>(1, kPackBytes / raw_panel));
    for (int first = 0; first < panels(); first += batch) {
        const int last = std::min(first + batch, panels());
        pack(pool, raw, raw_row, first, last, out);
        const uint8_t* end = last == panels() ? raw + rows * raw_row : raw + last * raw_panel;
        if (mapped) give_back(raw + first * raw_panel, end);
    }
}

void Matrix::pack(ThreadPool& pool, const uint8_t* raw, int64_t raw_row, int first_panel,
                  int last_panel, uint8_t* out) const {
    const PackedMatrix& m = packed_;
    pool.parallel_for(last_panel - first_panel, [&](int item) {
        const int panel = first_panel + item, row = panel * panel_rows_;
        const int count = std::min(panel_rows_, m.rows - row);
        const uint8_t* from = raw + row * raw_row;
        uint8_t* to = out + panel * m.panel_bytes;
        if (is_quantised(m.format)) {
            pack_quantised_panel(m.format, from, raw_row, count, m.columns, panel_rows_, to);
        } else {
            pack_float_panel(file_block_bytes(m.format), from, raw_row, count, m.columns,
                             panel_rows_, to);
        }
    });
}

int Matrix::panels() const { return (packed_.rows + panel_rows_ - 1) / panel_rows_; }

}  // namespace heddle
