#include "engram.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <string>

namespace heddle {

namespace {

constexpr uint32_t kMagic = 0x454E4752;
constexpr uint64_t kHeader1 = 20, kHeader2 = 128;
constexpr uint64_t kSlotBytes = 16, kPairBytes = 8;
constexpr uint64_t kFilterBitsPerEntry = 16;
// A table is at most half full, so runs of full slots are short: the longest of a sound table of
// 100 million entries has about 100 slots. A damaged table must not cost more time than this.
constexpr uint64_t kMostProbes = 4096;
constexpr uint64_t kSlotsPerRead = 8;
constexpr uint64_t kBytesPerRead = 1024;  // of a record; most fit

// Files are little-endian, as are all machines that Heddle runs on.
template <typename T>
T load(const uint8_t* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

// FNV-1a over the 4 bytes of each token.
uint64_t hash_of(const int* tokens, size_t count) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; ++i) {
        const auto token = static_cast<uint32_t>(tokens[i]);
        for (int shift = 0; shift < 32; shift += 8) {
            hash = (hash ^ (token >> shift & 0xff)) * 0x100000001b3;
        }
    }
    return hash;
}

std::array<uint64_t, 2> filter_places(uint64_t hash, uint64_t bits) {
    return {hash >> 32 & (bits - 1), (hash * 0x9E3779B97F4A7C15) >> 16 & (bits - 1)};
}

bool is_power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

void require(bool holds, const std::string& field, const std::string& reason) {
    if (!holds) throw std::invalid_argument(field + ": " + reason);
}

void require_length(uint64_t bytes, uint64_t least) {
    require(bytes >= least, "length",
            "the file has " + std::to_string(bytes) + " bytes and needs " + std::to_string(least) +
                " by its header; it is truncated");
}

}  // namespace

Engram::Engram(int file, uint64_t vocabulary) : file_(fcntl(file, F_DUPFD_CLOEXEC, 0)) {
    if (file_ < 0)
        throw std::runtime_error("cannot open the engram: " + std::string(strerror(errno)));
    try {
        struct stat status;
        if (fstat(file_, &status) != 0) throw std::runtime_error("cannot read the engram's length");
        file_bytes_ = static_cast<uint64_t>(std::max<off_t>(status.st_size, 0));
        std::array<uint8_t, kHeader2> fixed{};
        require_length(file_bytes_, kHeader1);
        read(0, fixed.data(), fixed.size());
        require(load<uint32_t>(fixed.data()) == kMagic, "magic", "the file is no engram table");
        header_.version = load<uint32_t>(fixed.data() + 4);
        header_.longest = load<uint32_t>(fixed.data() + 8);
        require(header_.version == 1 || header_.version == 2, "version",
                "is " + std::to_string(header_.version) + "; Heddle reads versions 1 and 2");
        if (header_.version == 1) {
            header_.vocabulary = vocabulary;
            header_.table_size = load<uint32_t>(fixed.data() + 12);
            header_.entries = load<uint32_t>(fixed.data() + 16);
            read_version_1();
        } else {
            read_version_2(fixed.data());
            if (vocabulary != 0) header_.vocabulary = std::min(header_.vocabulary, vocabulary);
        }
    } catch (...) {
        close(file_);
        throw;
    }
}

Engram::~Engram() { close(file_); }

void Engram::read_version_1() {
    require(header_.vocabulary > 0 && header_.vocabulary <= INT_MAX, "vocabulary",
            "version 1 does not say it; name it");
    header_.shortest = header_.longest;
    header_.table_at = kHeader1;
    check_layout(kHeader1);
    header_.data_at = kHeader1 + header_.table_size * kSlotBytes;
    require_length(file_bytes_, header_.data_at);
    header_.data_bytes = file_bytes_ - header_.data_at;
    make_filter();
}

void Engram::read_version_2(const uint8_t* fixed) {
    require_length(file_bytes_, kHeader2);
    Header& h = header_;
    h.shortest = load<uint32_t>(fixed + 12);
    h.table_size = load<uint64_t>(fixed + 16);
    h.entries = load<uint64_t>(fixed + 24);
    h.filter_bits = load<uint64_t>(fixed + 32);
    h.filter_at = load<uint64_t>(fixed + 40);
    h.table_at = load<uint64_t>(fixed + 48);
    h.data_at = load<uint64_t>(fixed + 56);
    h.data_bytes = load<uint64_t>(fixed + 64);
    h.vocabulary = load<uint64_t>(fixed + 72);
    std::memcpy(h.fingerprint.data(), fixed + 80, h.fingerprint.size());
    require(h.vocabulary > 0 && h.vocabulary <= INT_MAX, "vocabulary",
            "has " + std::to_string(h.vocabulary) + " tokens; 1 to 2147483647 are possible");
    check_layout(kHeader2);
    read_filter();
}

// Checks the header's sizes against each other and against the file. No sum here can overflow: each
// size is first compared with the file's length.
void Engram::check_layout(uint64_t header_bytes) const {
    const Header& h = header_;
    require(h.longest >= 1 && h.longest <= kLongestOrder, "order",
            "is " + std::to_string(h.longest) + "; 1 to 16 are possible");
    require(h.shortest >= 1 && h.shortest <= h.longest, "shortest order",
            "is " + std::to_string(h.shortest) + "; 1 to the longest order are possible");
    require(is_power_of_two(h.table_size) && h.table_size >= 2, "table_size",
            "is " + std::to_string(h.table_size) + ", which is no power of two from 2 on");
    require(h.entries <= h.table_size / 2, "num_entries",
            "is " + std::to_string(h.entries) + "; at most half of table_size is possible");
    require_length(file_bytes_, header_bytes);
    require(h.table_size <= (file_bytes_ - header_bytes) / kSlotBytes, "table_size",
            "is " + std::to_string(h.table_size) + ", more slots than the file has bytes for");
    if (h.version == 1) return;
    require(is_power_of_two(h.filter_bits) && h.filter_bits >= 64, "filter_bits",
            "is " + std::to_string(h.filter_bits) + ", which is no power of two from 64 on");
    require(h.filter_bits / 8 <= file_bytes_, "filter_bits", "exceeds the file");
    require(h.data_bytes <= file_bytes_, "data_bytes", "exceeds the file");
    for (const uint64_t at : {h.filter_at, h.table_at, h.data_at}) {
        require(at % 8 == 0 && at <= file_bytes_, "offset",
                std::to_string(at) + " is beyond the file or no multiple of 8");
    }
    require(h.filter_at >= kHeader2 && h.table_at >= h.filter_at + h.filter_bits / 8 &&
                h.data_at >= h.table_at + h.table_size * kSlotBytes,
            "offset", "filter, table and data overlap or are out of order");
    require_length(file_bytes_, h.data_at + h.data_bytes);
    require(h.data_at + h.data_bytes == file_bytes_, "length", "bytes follow the data");
}

void Engram::read_filter() {
    filter_.resize(header_.filter_bits / 8);
    if (read(header_.filter_at, filter_.data(), filter_.size()) != filter_.size()) {
        throw std::runtime_error("the engram's filter cannot be read");
    }
}

// Version 1 has no filter. This one reads the whole table, once.
void Engram::make_filter() {
    header_.filter_bits = 64;
    while (header_.filter_bits < header_.entries * kFilterBitsPerEntry) header_.filter_bits *= 2;
    filter_.assign(header_.filter_bits / 8, 0);
    std::vector<uint8_t> slots(size_t{1} << 20);
    const uint64_t end = header_.data_at;
    for (uint64_t at = header_.table_at; at < end;) {
        const size_t bytes = std::min<uint64_t>(slots.size(), end - at);
        if (read(at, slots.data(), bytes) != bytes) {
            throw std::runtime_error("the engram's table cannot be read");
        }
        for (size_t i = 0; i < bytes; i += kSlotBytes) {
            const uint64_t hash = load<uint64_t>(slots.data() + i);
            if (hash == 0) continue;
            for (const uint64_t bit : filter_places(hash, header_.filter_bits)) {
                filter_[bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
            }
        }
        at += bytes;
    }
}

// The number of bytes read; fewer than `bytes` where the file ends or cannot be read.
size_t Engram::read(uint64_t offset, void* out, size_t bytes) const {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(file_, static_cast<uint8_t*>(out) + done, bytes - done,
                                  static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += static_cast<size_t>(got);
    }
    return done;
}

bool Engram::passes_filter(uint64_t hash) const {
    const auto [first, second] = filter_places(hash, header_.filter_bits);
    return (filter_[first / 8] >> first % 8 & 1) != 0 &&
           (filter_[second / 8] >> second % 8 & 1) != 0;
}

std::vector<Prediction> Engram::predict(const int* tokens, size_t count) const {
    for (size_t order = header_.longest; order >= header_.shortest; --order) {
        if (order > count) continue;
        std::vector<Prediction> found = look_up(tokens + (count - order), order);
        if (!found.empty()) return found;
    }
    return {};
}

std::vector<Prediction> Engram::look_up(const int* ngram, size_t order) const {
    looked_up_.fetch_add(1, std::memory_order_relaxed);
    uint64_t hash = hash_of(ngram, order);
    if (hash == 0 && header_.version == 2) hash = 1;
    if (hash == 0 || !passes_filter(hash)) {
        filtered_.fetch_add(1, std::memory_order_relaxed);
        return {};
    }
    std::vector<Prediction> found;
    std::array<uint8_t, kSlotsPerRead * kSlotBytes> slots;
    const uint64_t last = std::min(header_.table_size, kMostProbes);
    uint64_t slot = hash & (header_.table_size - 1);
    for (uint64_t probed = 0; probed < last;) {
        const uint64_t count = std::min(kSlotsPerRead, header_.table_size - slot);
        const uint64_t got =
            read(header_.table_at + slot * kSlotBytes, slots.data(), count * kSlotBytes) /
            kSlotBytes;
        if (got == 0) return {};
        for (uint64_t i = 0; i < got; ++i) {
            const uint8_t* at = slots.data() + i * kSlotBytes;
            const uint64_t stored = load<uint64_t>(at);
            if (stored == 0) return {};
            if (stored != hash) continue;
            const uint64_t offset =
                header_.version == 1 ? load<uint32_t>(at + 8) : load<uint64_t>(at + 8);
            if (read_record(offset, ngram, order, found)) {
                found_.fetch_add(1, std::memory_order_relaxed);
                return found;
            }
            if (header_.version == 1) return {};  // it cannot tell n-grams with one hash apart
        }
        probed += got;
        slot = (slot + got) & (header_.table_size - 1);
    }
    return {};
}

// Reads the record at `offset` of the data. False if it is another n-gram's record or damaged. No
// token follows twice, so a sound record has at most as many pairs as the vocabulary has tokens.
bool Engram::read_record(uint64_t offset, const int* ngram, size_t order,
                         std::vector<Prediction>& found) const {
    std::array<uint8_t, kBytesPerRead> piece;
    if (offset > header_.data_bytes) return false;
    const uint64_t end = header_.data_at + header_.data_bytes;
    uint64_t at = header_.data_at + offset;  // where the piece begins
    uint64_t have = read(at, piece.data(), std::min(kBytesPerRead, end - at));
    uint64_t used = header_.version == 1 ? 4 : 8 + 4 * order;
    if (have < used) return false;
    uint32_t followers = load<uint32_t>(piece.data());
    if (header_.version == 2) {
        if (followers != order || std::memcmp(piece.data() + 8, ngram, 4 * order) != 0)
            return false;
        followers = load<uint32_t>(piece.data() + 4);
    }
    if (followers > std::min(header_.vocabulary, (end - at - used) / kPairBytes)) return false;
    found.clear();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < followers; ++i, used += kPairBytes) {
        if (have - used < kPairBytes) {
            at += used;
            have = read(at, piece.data(), std::min(kBytesPerRead, end - at));
            used = 0;
            if (have < kPairBytes) return false;
        }
        const uint32_t token = load<uint32_t>(piece.data() + used);
        const uint32_t frequency = load<uint32_t>(piece.data() + used + 4);
        sum += frequency;
        if (found.size() == kMostPredictions || frequency == 0) continue;
        if (token >= header_.vocabulary) continue;
        found.push_back({static_cast<int>(token), static_cast<double>(frequency)});
    }
    for (Prediction& one : found) one.probability /= static_cast<double>(sum);
    return !found.empty();
}

Engram::Counts Engram::counts() const {
    return {looked_up_.load(std::memory_order_relaxed), filtered_.load(std::memory_order_relaxed),
            found_.load(std::memory_order_relaxed)};
}

}  // namespace heddle
