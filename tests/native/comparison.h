// What the comparison of instruction levels is made of: random data that is the same on every
// machine, and the check of one kernel.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace heddle {

using Floats = std::vector<float>;

// SplitMix64 (Steele, Lea & Flood 2014).
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t bits() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    // About normal: the sum of four uniform draws.
    float normal(float deviation) {
        const uint64_t z = bits();
        int sum = -2 * 65535;
        for (int i = 0; i < 4; ++i) sum += static_cast<int>(z >> (16 * i) & 0xFFFF);
        return static_cast<float>(sum) * (deviation / 37837.0f);
    }
    Floats normals(int64_t n, float deviation) {
        Floats values(static_cast<size_t>(n));
        for (float& x : values) x = normal(deviation);
        return values;
    }
    // As activations are: one in 64 is an outlier.
    Floats activations(int64_t n) {
        Floats values = normals(n, 1.0f);
        for (float& x : values) x *= bits() % 64 == 0 ? 10.0f : 1.0f;
        return values;
    }

  private:
    uint64_t state_;
};

// Every level that runs here but the portable one.
inline std::vector<const Kernels*> fast_levels() {
    std::vector<const Kernels*> found;
    for (const Kernels* k : {amx_kernels(), avx512_kernels(), avxvnni_kernels(), avx2_kernels(),
                             i8mm_kernels(), neon_kernels()}) {
        if (k && supported(k) && enable(k)) found.push_back(k);
    }
#if defined(HEDDLE_HAS_EMULATED_TILES)
    if (supported(emulated_tiles_kernels())) found.push_back(emulated_tiles_kernels());
#endif
    return found;
}

// The comparisons of one kernel: what differs, and the hash of the portable results (FNV-1a).
class Check {
  public:
    explicit Check(std::string kernel) : kernel_(std::move(kernel)) {}
    ~Check() {
        std::printf("%-14s %016llx\n", kernel_.c_str(), static_cast<unsigned long long>(hash_));
    }

    void take(const void* data, size_t bytes) {
        const auto* p = static_cast<const uint8_t*>(data);
        for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001B3;
    }
    template <typename T>
    void take(const std::vector<T>& values) {
        take(values.data(), values.size() * sizeof(T));
    }

    template <typename T>
    void same(const Kernels& level, const std::string& what, const T* expected, const T* found,
              size_t n) {
        for (size_t i = 0; i < n; ++i) {
            if (std::memcmp(expected + i, found + i, sizeof(T)) == 0) continue;
            if (++differences_ <= 5) {
                std::fprintf(stderr, "%s: %s differs from portable at %zu of %zu, %s\n",
                             kernel_.c_str(), level.name, i, n, what.c_str());
            }
            failed = true;
            return;
        }
    }

    // f(kernels) gives a vector.
    template <typename F>
    void all_levels(const std::string& what, F f) {
        const auto expected = f(*portable_kernels());
        take(expected);
        for (const Kernels* level : fast_levels()) {
            const auto found = f(*level);
            same(*level, what, expected.data(), found.data(), expected.size());
        }
    }

    // f(kernels) holds at every level.
    template <typename F>
    void expect(const std::string& what, F f) {
        std::vector<const Kernels*> levels = fast_levels();
        levels.push_back(portable_kernels());
        for (const Kernels* level : levels) {
            if (f(*level)) continue;
            std::fprintf(stderr, "%s: %s is wrong, %s\n", kernel_.c_str(), level->name,
                         what.c_str());
            failed = true;
        }
    }

    static inline bool failed = false;  // any comparison of any kernel

  private:
    std::string kernel_;
    uint64_t hash_ = 0xCBF29CE484222325;
    int differences_ = 0;
};

// A name and a number, for saying which case differs.
inline std::string text(const char* name, int value) {
    return std::string(name) + " " + std::to_string(value) + " ";
}

}  // namespace heddle
