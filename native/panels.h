// Panels of packed matrices: written from rows of a file, and read back row by row. formats.h says
// how the bytes of a panel lie.
#pragma once

#include <cstdint>
#include <vector>

#include "file_blocks.h"
#include "kernels.h"

namespace heddle {

// Packs `rows` rows of file bytes, `raw_row` bytes apart, into the panel `out`. Rows past the
// matrix's end stay zero bytes; no kernel stores what they compute. Returns the last row with an
// infinite or NaN weight or block scale, -1 if there is none.
int pack_panel(Format format, const uint8_t* raw, int64_t raw_row, int rows, int columns,
               int panel_rows, uint8_t* out);

// The same for floats of type `stored`, which are quantised to `format`.
int pack_encoded_panel(const Kernels& kernels, Format format, Format stored, const uint8_t* raw,
                       int64_t raw_row, int rows, int columns, uint8_t* out);

// Row `row` of a panel as float32, as the file format defines it.
void read_panel_row(Format format, const uint8_t* panel, int panel_rows, int row, int columns,
                    float* out);

// Quantises rows of floats of type `stored`.
class RowEncoder {
  public:
    // `importance` has a weight for each column, or is null.
    RowEncoder(const Kernels& kernels, Format format, Format stored, int columns,
               const float* importance);
    int blocks() const { return blocks_; }
    // The blocks of the row of file bytes `raw`. Returns whether all its values are finite.
    bool encode(const uint8_t* raw, FileBlock* out);

  private:
    const Kernels& kernels_;
    Format format_, stored_;
    const float* importance_;
    std::vector<float> values_;
    int blocks_;
};

}  // namespace heddle
