#include "storage.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <stdexcept>
#include <string>

#include "file_blocks.h"
#include "simd.h"

namespace heddle {

namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;
// File bytes that a thread reads and packs at a time; they fit its second-level cache.
constexpr int64_t kPackBytes = int64_t{256} << 10;

// One block of every row of a panel, as `formats.h` describes it. Rows past the matrix's end stay
// zero bytes; no kernel stores what they compute.
class PanelWriter {
  public:
    PanelWriter(Format format, int panel_rows, uint8_t* out)
        : layout_(layout_of(format)), panel_rows_(panel_rows), out_(out) {}

    // `blocks` has the first row's block, and that of each further row `stride` blocks later.
    void write(const FileBlock* blocks, size_t rows, size_t stride) {
        if (layout_.header() > 0) {
            for (size_t r = 0; r < rows; ++r) put_half(r, blocks[r * stride].scale);
            if (layout_.minimum) {
                for (size_t r = 0; r < rows; ++r) {
                    put_half(panel_rows_ + r, blocks[r * stride].minimum);
                }
            }
        }
        out_ += layout_.header() * panel_rows_;
        for (int b = 0; b < layout_.blocks; ++b) {
            for (size_t r = 0; r < rows; ++r) {
                write_scales(blocks[r * stride], b, static_cast<int>(r));
                write_codes(blocks[r * stride].codes + b * kBlock, static_cast<int>(r));
            }
            out_ += layout_.block() * panel_rows_;
        }
    }

  private:
    void put_half(size_t index, uint16_t bits) { std::memcpy(out_ + index * 2, &bits, 2); }

    void write_scales(const FileBlock& row, int block, int r) {
        if (layout_.scale == Scale::kShared) return;
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

// One row of a panel, (super-)block by (super-)block: what PanelWriter wrote.
class PanelReader {
  public:
    PanelReader(Format format, int panel_rows, const uint8_t* panel, int row)
        : layout_(layout_of(format)), panel_rows_(panel_rows), in_(panel), r_(row) {}

    void read(FileBlock& row) {
        row.scale = row.minimum = 0;
        if (layout_.header() > 0) read_halves(row);
        in_ += layout_.header() * panel_rows_;
        for (int b = 0; b < layout_.blocks; ++b) {
            read_scales(row, b);
            read_codes(row.codes + b * kBlock);
            in_ += layout_.block() * panel_rows_;
        }
    }

  private:
    void read_halves(FileBlock& row) {
        row.scale = half_bits(in_ + r_ * 2);
        if (layout_.minimum) row.minimum = half_bits(in_ + (panel_rows_ + r_) * 2);
    }

    void read_scales(FileBlock& row, int block) {
        if (layout_.scale == Scale::kShared) return;
        if (layout_.scale == Scale::kHalf) return read_halves(row);
        for (int part = 0; part < layout_.parts; ++part) {
            const int at = block * layout_.parts + part;
            const uint8_t* scale = in_ + part * panel_rows_ + r_;
            if (layout_.scale == Scale::kNibbles) {
                row.scales[at] = *scale & 15;
                row.minima[at] = *scale >> 4;
            } else {
                row.scales[at] = *scale;
                if (layout_.minimum) row.minima[at] = scale[layout_.parts * panel_rows_];
            }
        }
    }

    void read_codes(uint8_t* codes) {
        std::memset(codes, 0, kBlock);
        const uint8_t* low = in_ + layout_.scales() * panel_rows_;
        read_plane(low + r_ * 4, 0, layout_.low_bits, codes);
        if (layout_.high_bits > 0) {
            const uint8_t* high = low + layout_.low() * panel_rows_;
            read_plane(high + r_ * 4, layout_.low_bits, layout_.high_bits, codes);
        }
    }

    // Puts a plane's bits at [to, to + bits) of 32 codes, four columns at a time.
    void read_plane(const uint8_t* in, int to, int bits, uint8_t* codes) {
        const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
        const int groups = 8 / bits;  // in a byte
        for (int g = 0; g < kGroups; g += groups, in += panel_rows_ * 4) {
            uint32_t packed;
            std::memcpy(&packed, in, 4);
            for (int k = 0; k < groups; ++k) {
                uint32_t four;
                std::memcpy(&four, codes + (g + k) * 4, 4);
                four |= (packed >> (k * bits) & mask) << to;
                std::memcpy(codes + (g + k) * 4, &four, 4);
            }
        }
    }

    Layout layout_;
    int panel_rows_;
    const uint8_t* in_;
    int r_;
};

// A float, without its scale.
float value_of(Format format, const uint8_t* p) {
    if (format == Format::kF16) return half_to_float(half_bits(p));
    if (format == Format::kBF16) return bits_float(static_cast<uint32_t>(half_bits(p)) << 16);
    if (format == Format::kF8E4M3) return float_of_e4m3(*p);
    float value;
    std::memcpy(&value, p, 4);
    return value;
}

// Row `row` of a panel of floats. A row of a file is a panel of one row.
void read_floats(Format format, const uint8_t* panel, int panel_rows, int row, int columns,
                 float* out) {
    const int run = layout_of(format).run, width = float_bytes(format);
    for (int first = 0; first < columns; first += run) {
        float scale = 1.0f;
        if (run > 1) {
            scale = value_of(Format::kF32, panel + row * 4);
            panel += panel_rows * 4;
        }
        for (int k = 0; k < run; ++k, panel += panel_rows * width) {
            out[first + k] = value_of(format, panel + row * width) * scale;
        }
    }
}

// Exponents of floats that are infinite or NaN have all bits set.
constexpr uint16_t kHalfExponent = 0x7C00, kBfloatExponent = 0x7F80;
constexpr uint32_t kFloatExponent = 0x7F800000;

constexpr bool finite_half(uint16_t bits) { return (bits & kHalfExponent) != kHalfExponent; }

bool finite_block(const FileBlock& block) {
    return finite_half(block.scale) && finite_half(block.minimum);
}

// Returns the last row with a scale that is not finite, -1 if there is none.
int pack_quantised_panel(Format format, const uint8_t* raw, int64_t raw_row, int rows, int columns,
                         int panel_rows, uint8_t* out) {
    const int width = layout_of(format).columns();
    PanelWriter writer(format, panel_rows, out);
    std::vector<FileBlock> blocks(static_cast<size_t>(rows));
    int non_finite = -1;
    for (int b = 0; b < columns / width; ++b) {
        for (int r = 0; r < rows; ++r) {
            FileBlock& block = blocks[static_cast<size_t>(r)];
            read_block(format, raw + r * raw_row + b * file_block_bytes(format), block);
            if (!finite_block(block)) non_finite = r;
        }
        writer.write(blocks.data(), blocks.size(), 1);
    }
    return non_finite;
}

// The same for values. `T` is an unsigned integer of a value's width.
template <typename T>
int pack_float_panel(T exponent, const uint8_t* raw, int64_t raw_row, int rows, int columns,
                     int panel_rows, uint8_t* out) {
    constexpr int kWidth = sizeof(T);
    int non_finite = -1;
    for (int64_t k = 0; k < columns; ++k) {
        for (int r = 0; r < rows; ++r) {
            T bits;
            std::memcpy(&bits, raw + r * raw_row + k * kWidth, kWidth);
            if ((bits & exponent) == exponent) non_finite = r;
            std::memcpy(out + (k * panel_rows + r) * kWidth, &bits, kWidth);
        }
    }
    return non_finite;
}

// The same for floats whose runs share scales. Kernels use 2**8 times a scale, so that number must
// be finite.
int pack_scaled_panel(Format format, const uint8_t* raw, int64_t raw_row, int rows, int columns,
                      int panel_rows, uint8_t* out) {
    const int run = layout_of(format).run, width = file_block_bytes(format);
    int non_finite = -1;
    for (int b = 0; b < columns / run; ++b, raw += width, out += panel_rows * width) {
        for (int r = 0; r < rows; ++r) {
            const uint8_t* from = raw + r * raw_row;
            float scale = value_of(Format::kF32, from);
            for (int k = 0; k < run; ++k) {
                const uint8_t code = from[4 + k];
                if ((code & 0x7F) == 0x7F) scale = __builtin_nanf("");
                out[panel_rows * (4 + k) + r] = code;
            }
            if (!std::isfinite(scale * 256.0f)) non_finite = r;
            std::memcpy(out + r * 4, &scale, 4);
        }
    }
    return non_finite;
}

int pack_panel(Format format, const uint8_t* raw, int64_t raw_row, int rows, int columns,
               int panel_rows, uint8_t* out) {
    switch (format) {
        case Format::kF32:
            return pack_float_panel(kFloatExponent, raw, raw_row, rows, columns, panel_rows, out);
        case Format::kF16:
            return pack_float_panel(kHalfExponent, raw, raw_row, rows, columns, panel_rows, out);
        case Format::kBF16:
            return pack_float_panel(kBfloatExponent, raw, raw_row, rows, columns, panel_rows, out);
        case Format::kF8E4M3:
            return pack_scaled_panel(format, raw, raw_row, rows, columns, panel_rows, out);
        default:
            return pack_quantised_panel(format, raw, raw_row, rows, columns, panel_rows, out);
    }
}

// Quantises rows of floats: blocks of a few rows at a time, so they stay in the cache.
class RowEncoder {
  public:
    RowEncoder(const Kernels& kernels, Format format, Format stored, int columns,
               const float* importance)
        : kernels_(kernels),
          format_(format),
          stored_(stored),
          importance_(importance),
          values_(static_cast<size_t>(columns)),
          blocks_(columns / layout_of(format).columns()) {}

    int blocks() const { return blocks_; }

    // The blocks of the row of file bytes `raw`. Returns whether all its values are finite.
    bool encode(const uint8_t* raw, FileBlock* out) {
        read_floats(stored_, raw, 1, 0, static_cast<int>(values_.size()), values_.data());
        kernels_.encode(format_, values_.data(), importance_, blocks_, out);
        return std::all_of(out, out + blocks_, finite_block);
    }

  private:
    const Kernels& kernels_;
    Format format_, stored_;
    const float* importance_;
    std::vector<float> values_;
    int blocks_;
};

// As pack_quantised_panel, for floats of type `stored`.
int pack_encoded_panel(const Kernels& kernels, Format format, Format stored, const uint8_t* raw,
                       int rows, int columns, uint8_t* out) {
    RowEncoder encoder(kernels, format, stored, columns, nullptr);
    const auto stride = static_cast<size_t>(encoder.blocks());
    std::vector<FileBlock> blocks(static_cast<size_t>(rows) * stride);
    int non_finite = -1;
    for (int r = 0; r < rows; ++r) {
        const uint8_t* row = raw + r * row_bytes(stored, columns);
        if (!encoder.encode(row, &blocks[static_cast<size_t>(r) * stride])) non_finite = r;
    }
    PanelWriter writer(format, kernels.panel_rows, out);
    for (size_t b = 0; b < stride; ++b) {
        writer.write(&blocks[b], static_cast<size_t>(rows), stride);
    }
    return non_finite;
}

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
                    : pack_encoded_panel(kernels, m.format, stored, from, count, m.columns, to);
            if (found >= 0) non_finite.store(row + found, std::memory_order_relaxed);
        }
    });
    non_finite_row_ = non_finite.load();
}

void Matrix::dequantise_row(int row, float* out) const {
    const PackedMatrix& m = packed_;
    const uint8_t* panel = m.panels + row / panel_rows_ * m.panel_bytes;
    const int r = row % panel_rows_;
    if (!is_quantised(m.format)) {
        return read_floats(m.format, panel, panel_rows_, r, m.columns, out);
    }
    const int width = layout_of(m.format).columns();
    PanelReader reader(m.format, panel_rows_, panel, r);
    FileBlock block;
    for (int k = 0; k < m.columns; k += width) {
        reader.read(block);
        dequantise_block(m.format, block, out + k);
    }
}

int Matrix::panels() const { return (packed_.rows + panel_rows_ - 1) / panel_rows_; }

}  // namespace heddle
