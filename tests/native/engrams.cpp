// Gives the reader of engrams damaged files: a sound one with random bytes changed, and its first
// bytes only. scripts/sanitize.sh builds it with AddressSanitizer and UndefinedBehaviorSanitizer.
//
// A file is refused, or its predictions are tokens of the vocabulary with probabilities. The
// changes are the same in every run.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "engram.h"

namespace {

using namespace heddle;

constexpr int kRounds = 8000;
constexpr uint32_t kVocabulary = 100;
constexpr uint32_t kSlots = 64, kDataBytes = 2048;

using Bytes = std::vector<uint8_t>;

template <typename T>
void put(Bytes& bytes, size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

// A file whose header is sound. Half of the slots are full, and data and filter are random.
Bytes sound(uint32_t version, std::mt19937& random) {
    const size_t table = version == 1 ? 20 : 128 + 128, slot = 16;
    Bytes bytes(table + kSlots * slot + kDataBytes);
    for (size_t i = version == 1 ? 20 : 128; i + 4 <= bytes.size(); i += 4) {
        put<uint32_t>(bytes, i, random() >> (random() % 3 == 0 ? 0 : 25));
    }
    for (uint32_t i = 0; i < kSlots; ++i) {
        put<uint64_t>(bytes, table + i * slot, i % 2 == 0 ? 0 : random());
        put<uint64_t>(bytes, table + i * slot + 8, random() % (kDataBytes + 8));
    }
    put<uint32_t>(bytes, 0, 0x454E4752);
    put<uint32_t>(bytes, 4, version);
    put<uint32_t>(bytes, 8, 2);
    if (version == 1) {
        put<uint32_t>(bytes, 12, kSlots);
        put<uint32_t>(bytes, 16, kSlots / 2);
        return bytes;
    }
    put<uint32_t>(bytes, 12, 1);
    const uint64_t numbers[] = {kSlots,     kSlots / 2, 1024, 128, table, table + kSlots * slot,
                                kDataBytes, kVocabulary};
    std::memcpy(bytes.data() + 16, numbers, sizeof numbers);
    return bytes;
}

void damage(Bytes& bytes, std::mt19937& random) {
    const size_t changes = random() % 8;
    for (size_t i = 0; i < changes; ++i) {
        const size_t within =
            random() % 2 == 0 ? std::min<size_t>(bytes.size(), 128) : bytes.size();
        bytes[random() % within] = static_cast<uint8_t>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
}

// FNV-1a of a single token, for slots that are found.
uint64_t hash_of(uint32_t token) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ (token >> shift & 0xff)) * 0x100000001b3;
    }
    return hash;
}

// Lets token 7 find a slot with this record, whatever the record is.
void plant(Bytes& bytes, uint32_t version, std::mt19937& random) {
    if (version == 1) return;
    const uint64_t hash = hash_of(7);
    const size_t table = 256, place = hash & (kSlots - 1), record = random() % (kDataBytes / 4) * 4;
    std::memset(bytes.data() + 128, 255, 128);
    put<uint64_t>(bytes, table + place * 16, hash);
    put<uint64_t>(bytes, table + place * 16 + 8, record);
    const size_t at = table + kSlots * 16 + record;
    if (at + 12 > bytes.size()) return;
    put<uint32_t>(bytes, at, 1);
    put<uint32_t>(bytes, at + 4, static_cast<uint32_t>(random() % (2 * kVocabulary)));
    put<uint32_t>(bytes, at + 8, 7);
}

bool is_sound(const std::vector<Prediction>& found) {
    for (const Prediction& one : found) {
        if (one.token < 0 || one.token >= static_cast<int>(kVocabulary)) return false;
        if (!(one.probability > 0.0 && one.probability <= 1.0)) return false;
    }
    return found.size() <= Engram::kMostPredictions;
}

// Whether the file is refused, or predicts soundly. Counts predictions in `predicted`.
bool check(const Bytes& bytes, std::mt19937& random, int& predicted) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
    if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
        return false;
    std::fflush(file.get());
    try {
        const Engram engram(fileno(file.get()), kVocabulary);
        if (random() % 8 == 0 && ftruncate(fileno(file.get()), random() % 300) != 0) return false;
        for (int tries = 0; tries < 8; ++tries) {
            const int tokens[] = {static_cast<int>(random() % 4), tries == 0 ? 7 : tries};
            const auto found = engram.predict(tokens, 2);
            predicted += found.empty() ? 0 : 1;
            if (!is_sound(found)) return false;
        }
    } catch (const std::invalid_argument&) {
    }
    return true;
}

}  // namespace

int main() {
    std::mt19937 random(11);
    int predicted = 0;
    for (int round = 0; round < kRounds; ++round) {
        const uint32_t version = round % 4 == 0 ? 1 : 2;
        Bytes bytes = sound(version, random);
        plant(bytes, version, random);
        damage(bytes, random);
        if (check(bytes, random, predicted)) continue;
        std::fprintf(stderr, "a damaged engram is not refused, or predicts nonsense in round %d\n",
                     round);
        return 1;
    }
    if (predicted < kRounds / 20) {
        std::fprintf(stderr, "only %d predictions: the files are refused too early\n", predicted);
        return 1;
    }
    return 0;
}
