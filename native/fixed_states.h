// Fixed-size states of recurrent layers: those of slots, and snapshots of them.
//
// A state is contiguous: all layers, one after the other. The system maps all memory, but only used
// states become resident.
#pragma once

#include <cstdint>

#include "mapping.h"

namespace heddle {

class FixedStates {
  public:
    // Throws std::bad_alloc; std::invalid_argument: a state is not whole lines of 64 bytes.
    FixedStates(int64_t count, int64_t bytes);
    int64_t count() const { return count_; }
    int64_t bytes() const { return bytes_; }
    float* at(int64_t state) { return reinterpret_cast<float*>(memory_.base() + state * bytes_); }
    // These throw std::invalid_argument: no such state.
    void clear(int64_t state);
    void copy(int64_t source, int64_t target);
    void read(int64_t state, uint8_t* bytes);
    void write(int64_t state, const uint8_t* bytes);

  private:
    void check(int64_t state) const;

    int64_t count_, bytes_;
    Mapping memory_;
};

}  // namespace heddle
