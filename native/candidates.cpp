#include "candidates.h"

#include <array>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle {

namespace {

// Depth of the first shortlist below the peak, in nats, and how much deeper each next shortlist
// goes. The steps are small: collecting again costs a few microseconds, and sorting useless
// candidates costs far more.
constexpr float kFirstWindow = 3.0f;
constexpr float kNextWindow = 1.5f;

// At a lower temperature, only the best candidate has weight, and scores exceed the float range.
constexpr float kColdest = 1e-15f;

// Tests the exponent bits, which are all set in NaN and infinity: compilers vectorise integer
// tests.
bool all_finite(const float* logits, int count) {
    constexpr uint32_t kExponent = 0x7F800000;
    uint32_t found = 0;
    for (int i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, logits + i, sizeof bits);
        found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
    }
    return found == 0;
}

// For each byte of a mask, upper bounds of eight logits: infinity, or minus infinity. The table
// avoids branches, because most bytes of most masks mix allowed and forbidden tokens.
using Bounds = std::array<std::array<float, 8>, 256>;
constexpr Bounds make_bounds() {
    Bounds bounds{};
    for (size_t bits = 0; bits < 256; ++bits) {
        for (size_t i = 0; i < 8; ++i) bounds[bits][i] = bits >> i & 1 ? INFINITY : -INFINITY;
    }
    return bounds;
}
constexpr Bounds kBounds = make_bounds();

constexpr std::array<uint8_t, 256> count_bits() {
    std::array<uint8_t, 256> counts{};
    for (size_t bits = 1; bits < 256; ++bits) counts[bits] = counts[bits / 2] + bits % 2;
    return counts;
}
constexpr std::array<uint8_t, 256> kSetBits = count_bits();

inline void bound(float* logits, const float* bounds, int count) {
    if (count < 8) {
        for (int i = 0; i < count; ++i) logits[i] = std::min(logits[i], bounds[i]);
        return;
    }
    for (int i = 0; i < 8; ++i) logits[i] = std::min(logits[i], bounds[i]);
}

// Ascending keys for descending logits.
uint32_t radix_key(float logit) {
    logit += 0.0f;  // -0 and 0 are a tie
    uint32_t bits;
    std::memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

}  // namespace

// From this size on, a radix sort with three passes is faster than comparisons: 152,000 candidates
// take 3 ms instead of 13.
constexpr size_t kRadixSize = 2048;

// Sorts list_, whose tokens ascend: stable passes leave ties in their order.
void Candidates::sort_list() {
    if (list_.size() < kRadixSize) return std::sort(list_.begin(), list_.end(), better);
    constexpr int kBits = 11, kDigits = 3;
    constexpr uint32_t kMask = (1u << kBits) - 1;
    uint32_t places[kDigits][1u << kBits] = {};
    for (const Candidate& c : list_) {
        const uint32_t key = radix_key(c.logit);
        for (int digit = 0; digit < kDigits; ++digit) ++places[digit][key >> digit * kBits & kMask];
    }
    other_list_.resize(list_.size());
    for (int digit = 0; digit < kDigits; ++digit) {
        uint32_t place = 0;
        for (uint32_t& count : places[digit]) {
            const uint32_t here = count;
            count = place;
            place += here;
        }
        for (const Candidate& c : list_) {
            other_list_[places[digit][radix_key(c.logit) >> digit * kBits & kMask]++] = c;
        }
        list_.swap(other_list_);
    }
}

bool Candidates::reset(const Kernels& kernels, float* logits, int vocabulary) {
    kernels_ = &kernels;
    logits_ = logits;
    vocabulary_ = vocabulary;
    excluded_ = 0;
    factor_ = 1.0f;
    listed_ = false;
    list_.clear();
    before_.clear();
    block_peaks_.clear();
    for (int first = 0; first < vocabulary; first += kPeakBlock) {
        const int count = std::min(kPeakBlock, vocabulary - first);
        if (!all_finite(logits + first, count)) return false;
        block_peaks_.push_back(kernels.max(logits + first, count));
    }
    find_peak();
    return true;
}

void Candidates::find_peak() {
    peak_ = kernels_->max(block_peaks_.data(), static_cast<int>(block_peaks_.size()));
}

// --- reading -------------------------------------------------------------------------------------

int Candidates::size() const {
    return listed_ ? static_cast<int>(list_.size()) : vocabulary_ - excluded_;
}

double Candidates::mass() {
    double mass = 0.0;
    if (listed_) {
        for (float weight : weights()) mass += weight;
        return mass;
    }
    for (int first = 0; first < vocabulary_; first += kMassBlock) {
        const int count = std::min(kMassBlock, vocabulary_ - first);
        mass += kernels_->sum_exp(logits_ + first, count, peak_, factor_);
    }
    return mass;
}

float Candidates::log_normaliser() {
    return static_cast<float>(static_cast<double>(peak_) + std::log(mass()));
}

// With x the logarithm of a weight w, -sum(p log p) = log(sum w) - sum(w x) / sum w.
double Candidates::entropy() {
    double mass = 0.0, weighted = 0.0;
    each([&](float logit, float weight, int) {
        mass += weight;
        if (weight > 0.0f) weighted += weight * ((logit - peak_) * factor_);  // not 0 * infinity
    });
    return std::log(mass) - weighted / mass;
}

float Candidates::raw(int token) const {
    for (const Candidate& c : before_) {
        if (c.token == token) return c.logit;
    }
    return logits_[token];
}

bool Candidates::has(int token) const { return token < vocabulary_ && logits_[token] != -INFINITY; }

Candidate Candidates::best() const {
    if (listed_) return list_.front();
    Candidate found{peak_, -1};
    each_above(peak_, [&](int token) {
        if (found.token < 0) found.token = token;
    });
    return found;
}

const std::vector<float>& Candidates::weights() {
    weights_.resize(list_.size());
    for (size_t i = 0; i < list_.size(); ++i) weights_[i] = list_[i].logit;
    weigh(weights_.data(), static_cast<int>(list_.size()));
    return weights_;
}

// Fills weights_ from `count` logits; the logits may be weights_ itself.
void Candidates::weigh(const float* logits, int count) {
    if (weights_.size() < static_cast<size_t>(count)) weights_.resize(count);
    kernels_->exp_all(logits, count, peak_, factor_, weights_.data());
}

// Calls f(token) for tokens with a logit of at least `floor`, ascending.
template <typename F>
void Candidates::each_above(float floor, F f) const {
    for (size_t block = 0; block < block_peaks_.size(); ++block) {
        if (!(block_peaks_[block] >= floor)) continue;
        const int first = static_cast<int>(block) * kPeakBlock;
        const int end = std::min(first + kPeakBlock, vocabulary_);
        int found[kPeakBlock], count = 0;  // no branch: flat distributions are unpredictable
        for (int i = first; i < end; ++i) {
            found[count] = i;
            count += logits_[i] >= floor;
        }
        for (int i = 0; i < count; ++i) f(found[i]);
    }
}

void Candidates::collect(float floor) {
    list_.clear();
    each_above(std::max(floor, -FLT_MAX),
               [&](int token) { list_.push_back({logits_[token], token}); });
}

void Candidates::show_best(int count) {
    if (listed_) return;
    const size_t wanted = static_cast<size_t>(std::min(count, size()));
    float window = kFirstWindow / factor_;
    for (collect(peak_ - window); list_.size() < wanted; collect(peak_ - window)) {
        window *= kNextWindow;
    }
    if (wanted < list_.size()) {
        std::nth_element(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(wanted) - 1,
                         list_.end(), better);
        list_.resize(wanted);
        std::sort(list_.begin(), list_.end(), better);
    } else {
        sort_list();
    }
}

void Candidates::show_above(float logit) {
    if (listed_) return;
    collect(logit);
    sort_list();
}

void Candidates::show_mass(double mass) {
    if (listed_) return;
    const auto enough = [&] {
        if (static_cast<int>(list_.size()) >= size()) return true;
        double shown = 0.0;
        for (float weight : weights()) shown += weight;
        return shown > mass;
    };
    float window = kFirstWindow / factor_;
    for (collect(peak_ - window); !enough(); collect(peak_ - window)) window *= kNextWindow;
    sort_list();
}

// --- changing ------------------------------------------------------------------------------------

void Candidates::put(int token, float logit) {
    const float before = logits_[token];
    before_.push_back({before, token});
    logits_[token] = logit;
    // Penalties may exceed the range of floats, and a list of all candidates needs the count.
    excluded_ += (logit == -INFINITY) - (before == -INFINITY);
    float& peak = block_peaks_[static_cast<size_t>(token / kPeakBlock)];
    if (logit >= peak) {
        peak = logit;
    } else if (before == peak) {
        const int first = token / kPeakBlock * kPeakBlock;
        peak = kernels_->max(logits_ + first, std::min(kPeakBlock, vocabulary_ - first));
    }
}

void Candidates::add(const std::vector<std::pair<int, float>>& biases) {
    for (const auto& [token, bias] : biases) {
        if (has(token)) put(token, std::clamp(logits_[token] + bias, -FLT_MAX, FLT_MAX));
    }
    if (!biases.empty()) find_peak();
}

void Candidates::add(const std::vector<float>& bias) {
    const int count = std::min(static_cast<int>(bias.size()), vocabulary_);
    for (int token = 0; token < count; ++token) {
        if (bias[token] == 0.0f || !has(token)) continue;
        const float sum = logits_[token] + bias[token];
        put(token, bias[token] == -INFINITY ? sum : std::clamp(sum, -FLT_MAX, FLT_MAX));
    }
    if (count > 0) find_peak();
}

void Candidates::exclude(int token) {
    if (token >= vocabulary_ || logits_[token] == -INFINITY) return;
    put(token, -INFINITY);
    find_peak();
}

void Candidates::exclude(const std::vector<int>& tokens) {
    if (tokens.empty()) return;
    for (int token : tokens) {
        if (token >= vocabulary_ || logits_[token] == -INFINITY) continue;
        put(token, -INFINITY);
    }
    find_peak();
}

void Candidates::allow_only(const uint8_t* mask, size_t bytes) {
    static_assert(kPeakBlock % 8 == 0, "a byte of the mask lies in one block");
    int allowed = 0;
    for (size_t block = 0; block < block_peaks_.size(); ++block) {
        const int begin = static_cast<int>(block) * kPeakBlock;
        const int end = std::min(begin + kPeakBlock, vocabulary_);
        for (int first = begin; first < end; first += 8) {
            const size_t place = static_cast<size_t>(first / 8);
            const int count = std::min(8, end - first);
            const unsigned bits = (place < bytes ? mask[place] : 0u) & (0xFFu >> (8 - count));
            bound(logits_ + first, kBounds[bits].data(), count);
            allowed += kSetBits[bits];
        }
        block_peaks_[block] = kernels_->max(logits_ + begin, end - begin);
    }
    excluded_ = vocabulary_ - allowed;
    find_peak();
}

void Candidates::cool(float temperature) {
    if (temperature >= kColdest) {
        factor_ /= temperature;
    } else {  // the other candidates have no weight
        show_best(1);
        cut(1);
    }
}

void Candidates::cut(size_t count) {
    list_.resize(std::min(count, list_.size()));
    listed_ = true;
}

void Candidates::drop_best(size_t count) {
    if (listed_) {
        list_.erase(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(count));
        peak_ = list_.front().logit;
        return;
    }
    for (size_t i = 0; i < count; ++i) exclude(list_[i].token);
    list_.clear();
}

void Candidates::keep(const std::vector<bool>& chosen) {
    size_t kept = 0;
    for (size_t i = 0; i < list_.size(); ++i) {
        if (chosen[i]) list_[kept++] = list_[i];
    }
    list_.resize(kept);
    peak_ = list_.front().logit;
    listed_ = true;
}

void Candidates::keep_only(int token) {
    peak_ = 0.0f;  // the weight is 1 for every logit
    list_.assign(1, Candidate{peak_, token});
    listed_ = true;
}

// --- choosing ------------------------------------------------------------------------------------

Candidate Candidates::draw(float uniform) {
    return listed_ ? draw_listed(uniform) : draw_unlisted(uniform);
}

Candidate Candidates::draw_listed(float uniform) {
    double rest = mass() * uniform;
    for (size_t i = 0; i < list_.size(); ++i) {
        rest -= weights_[i];
        if (rest < 0.0) return list_[i];
    }
    return list_.back();  // rounding may leave a remainder
}

Candidate Candidates::draw_unlisted(float uniform) {
    masses_.clear();
    double total = 0.0;
    for (int first = 0; first < vocabulary_; first += kMassBlock) {
        const int count = std::min(kMassBlock, vocabulary_ - first);
        masses_.push_back(kernels_->sum_exp(logits_ + first, count, peak_, factor_));
        total += masses_.back();
    }
    double rest = total * uniform;
    size_t block = 0;
    while (block + 1 < masses_.size() && rest >= masses_[block]) rest -= masses_[block++];
    const int first = static_cast<int>(block) * kMassBlock;
    const int count = std::min(kMassBlock, vocabulary_ - first);
    weigh(logits_ + first, count);
    int chosen = -1;
    for (int i = 0; i < count; ++i) {
        if (weights_[i] <= 0.0f) continue;
        chosen = first + i;  // the last possible token takes a remainder of rounding
        rest -= weights_[i];
        if (rest < 0.0) break;
    }
    return chosen < 0 ? best() : Candidate{logits_[chosen], chosen};
}

}  // namespace heddle
