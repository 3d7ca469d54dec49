#include "fixed_states.h"

#include <cstring>
#include <stdexcept>

namespace heddle {

FixedStates::FixedStates(int64_t count, int64_t bytes) : count_(count), bytes_(bytes) {
    if (count < 1 || bytes < 64 || bytes % 64 != 0) {
        throw std::invalid_argument("a state has whole lines of 64 bytes");
    }
    memory_ = Mapping(static_cast<size_t>(count * bytes));
}

void FixedStates::clear(int64_t state) {
    check(state);
    std::memset(at(state), 0, static_cast<size_t>(bytes_));
}

void FixedStates::copy(int64_t source, int64_t target) {
    check(source);
    check(target);
    if (source != target) std::memcpy(at(target), at(source), static_cast<size_t>(bytes_));
}

void FixedStates::read(int64_t state, uint8_t* bytes) {
    check(state);
    std::memcpy(bytes, at(state), static_cast<size_t>(bytes_));
}

void FixedStates::write(int64_t state, const uint8_t* bytes) {
    check(state);
    std::memcpy(at(state), bytes, static_cast<size_t>(bytes_));
}

void FixedStates::check(int64_t state) const {
    if (state < 0 || state >= count_) throw std::invalid_argument("no such state");
}

}  // namespace heddle
