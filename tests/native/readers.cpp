// Gives the readers of file blocks random bytes, as a damaged or hostile model file has them.
// scripts/sanitize.sh builds it with AddressSanitizer and UndefinedBehaviorSanitizer.
//
// All buffers have their exact size on the heap, so that the sanitizer sees one byte too many.
// Codes are indices into tables, so the program also checks their range. The bytes are the same in
// every run. 2,000 blocks of each type take 1 s with sanitizers.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "file_blocks.h"
#include "formats.h"

namespace {

using namespace heddle;

constexpr int kRounds = 2000;

// Random bytes; now and then only zeros, only ones, or one byte repeated.
void fill(uint8_t* bytes, int count, int round, std::mt19937& random) {
    if (round % 8 == 0) {
        const int same[] = {0, 255, 127, 128, static_cast<int>(random() & 255)};
        std::memset(bytes, same[round / 8 % 5], count);
        return;
    }
    for (int i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(random());
}

bool codes_fit(const FormatRow& row, const FileBlock& block) {
    for (int i = 0; i < row.layout.columns(); ++i) {
        if (block.codes[i] >> row.layout.bits() != 0) return false;
    }
    return true;
}

// Whether all blocks of a type are read within their bytes.
bool check(const FormatRow& row) {
    std::mt19937 random(static_cast<unsigned>(row.format));
    for (int round = 0; round < kRounds; ++round) {
        const std::unique_ptr<uint8_t[]> bytes(new uint8_t[row.file_bytes]);
        fill(bytes.get(), row.file_bytes, round, random);
        const auto block = std::make_unique<FileBlock>();
        std::memset(block.get(), 0xA5, sizeof(FileBlock));
        read_block(row.format, bytes.get(), *block);
        if (!codes_fit(row, *block)) {
            std::fprintf(stderr, "%s: a code is too large in round %d\n", row.name, round);
            return false;
        }
        const std::unique_ptr<float[]> values(new float[row.layout.columns()]);
        dequantise_block(row.format, *block, values.get());
        if (row.write.exists) row.write.function(*block, bytes.get());
    }
    return true;
}

}  // namespace

int main() {
    bool is_sound = true;
    for (const FormatRow& row : kFormats) {
        if (row.read != nullptr) is_sound = check(row) && is_sound;
    }
    return is_sound ? 0 : 1;
}
