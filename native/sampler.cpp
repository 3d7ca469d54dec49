#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace heddle {

namespace {

constexpr int kSearchBlock = 256;  // logits whose maximum decides whether they are looked at
constexpr int kMassBlock = 1024;   // logits summed together by the untruncated draw
// Nats below the peak that the first shortlist reaches, and how much further each next one. Small
// steps: collecting again costs a few microseconds, sorting what is not kept far more.
constexpr float kFirstWindow = 3.0f;
constexpr float kNextWindow = 1.5f;

bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Calls f(token) for tokens with a logit of at least `floor`, ascending.
template <typename F>
void each_above(const Kernels& kernels, const float* logits, int vocabulary, float floor, F f) {
    for (int block = 0; block < vocabulary; block += kSearchBlock) {
        const int end = std::min(block + kSearchBlock, vocabulary);
        if (!(kernels.max(logits + block, end - block) >= floor)) continue;
        for (int i = block; i < end; ++i) {
            if (logits[i] >= floor) f(i);
        }
    }
}

// By the exponent bits, all set in NaN and infinity: compilers make vectors of integer tests.
bool all_finite(const float* logits, int vocabulary) {
    constexpr uint32_t kExponent = 0x7F800000;
    uint32_t found = 0;
    for (int i = 0; i < vocabulary; ++i) {
        uint32_t bits;
        std::memcpy(&bits, logits + i, sizeof bits);
        found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
    }
    return found == 0;
}

int first_at_least(const Kernels& kernels, const float* logits, int vocabulary, float value) {
    for (int block = 0; block < vocabulary; block += kSearchBlock) {
        const int end = std::min(block + kSearchBlock, vocabulary);
        if (!(kernels.max(logits + block, end - block) >= value)) continue;
        for (int i = block; i < end; ++i) {
            if (logits[i] >= value) return i;
        }
    }
    return -1;
}

}  // namespace

float uniform(uint64_t seed, uint32_t index) {
    uint32_t x[4] = {index, 0, 0, 0};
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * x[0], b = uint64_t{0xCD9E8D57} * x[2];
        const uint32_t next[4] = {
            static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
            static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
        std::copy(next, next + 4, x);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return static_cast<float>(x[0] >> 8) * 0x1p-24f;
}

bool Sampler::penalised() const {
    return params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
           params_.frequency_penalty != 0.0f;
}

bool Sampler::truncated() const {
    return params_.top_k > 0 || params_.top_p < 1.0f || params_.min_p > 0.0f;
}

void Sampler::observe_prompt(const int32_t* tokens, int64_t count) {
    if (!penalised()) return;
    for (int64_t i = 0; i < count; ++i) seen_.try_emplace(tokens[i], 0);
}

void Sampler::observe_output(int token) {
    ++generated_;
    if (penalised()) ++seen_[token];
}

void Sampler::adjust(float* logits, int vocabulary) const {
    for (const auto& [token, value] : params_.bias) {
        if (token < vocabulary) logits[token] += value;
    }
    for (const auto& [token, count] : seen_) {
        float& logit = logits[token];
        const float r = params_.repetition_penalty;
        logit = logit > 0.0f ? logit / r : logit * r;
        logit -= params_.frequency_penalty * static_cast<float>(count);
        if (count > 0) logit -= params_.presence_penalty;
    }
}

// Keeps the likeliest `logprobs` tokens of the raw distribution, as logits until `pick` knows the
// normaliser; pick.logprob is set to that normaliser meanwhile.
void Sampler::report(const Kernels& kernels, const float* logits, int vocabulary, Pick& pick) {
    const float peak = kernels.max(logits, vocabulary);
    const double mass = total_mass(kernels, logits, vocabulary, peak);
    pick.logprob = static_cast<float>(static_cast<double>(peak) + std::log(mass));
    const size_t wanted = static_cast<size_t>(std::min(params_.logprobs, vocabulary));
    if (wanted == 0) return;
    candidates_.clear();
    float floor = -INFINITY;  // the worst of the kept ones, once there are enough
    for (int block = 0; block < vocabulary; block += kSearchBlock) {
        const int end = std::min(block + kSearchBlock, vocabulary);
        if (!(kernels.max(logits + block, end - block) > floor)) continue;
        for (int i = block; i < end; ++i) {
            if (!(logits[i] > floor)) continue;
            const Candidate found{logits[i], i};
            candidates_.insert(
                std::upper_bound(candidates_.begin(), candidates_.end(), found, better), found);
            if (candidates_.size() > wanted) candidates_.pop_back();
            if (candidates_.size() == wanted) floor = candidates_.back().logit;
        }
    }
    for (const Candidate& c : candidates_) pick.top.emplace_back(c.token, c.logit);
}

Pick Sampler::pick(const Kernels& kernels, float* logits, int vocabulary) {
    Pick result;
    if (!all_finite(logits, vocabulary)) return result;
    if (params_.logprobs >= 0) report(kernels, logits, vocabulary, result);
    const float normaliser = result.logprob;
    // The raw logit of the chosen token is needed after `adjust`; few tokens are changed by it.
    std::vector<Candidate> raw;
    if (params_.logprobs >= 0) {
        for (const auto& item : params_.bias) {
            if (item.first < vocabulary) raw.push_back({logits[item.first], item.first});
        }
        for (const auto& item : seen_) raw.push_back({logits[item.first], item.first});
    }
    adjust(logits, vocabulary);
    const float peak = kernels.max(logits, vocabulary);
    if (!std::isfinite(peak)) return Pick{};  // a penalty took a huge logit out of range
    if (params_.temperature == 0.0f) {
        result.token = first_at_least(kernels, logits, vocabulary, peak);
    } else if (truncated()) {
        result.token = draw_truncated(kernels, logits, vocabulary, peak);
    } else {
        result.token = draw_full(kernels, logits, vocabulary, peak);
    }
    if (params_.logprobs >= 0 && result.token >= 0) {
        float logit = logits[result.token];
        for (const Candidate& c : raw) {
            if (c.token == result.token) logit = c.logit;
        }
        result.logprob = logit - normaliser;
        for (auto& item : result.top) item.second -= normaliser;
    }
    if (result.token >= 0) observe_output(result.token);
    return result;
}

int Sampler::draw_full(const Kernels& kernels, const float* logits, int vocabulary, float peak) {
    const float factor = 1.0f / params_.temperature;
    weights_.clear();
    double total = 0.0;
    for (int block = 0; block < vocabulary; block += kMassBlock) {
        const int n = std::min(kMassBlock, vocabulary - block);
        weights_.push_back(kernels.sum_exp(logits + block, n, peak, factor));
        total += weights_.back();
    }
    double rest = total * uniform(params_.seed, generated_);
    size_t block = 0;
    while (block + 1 < weights_.size() && rest >= weights_[block]) rest -= weights_[block++];
    const int first = static_cast<int>(block) * kMassBlock;
    const int n = std::min(kMassBlock, vocabulary - first);
    weights_.resize(kMassBlock);
    kernels.exp_all(logits + first, n, peak, factor, weights_.data());
    int chosen = -1;
    for (int i = 0; i < n; ++i) {
        if (weights_[i] <= 0.0f) continue;
        chosen = i;  // rounding may leave a rest at the end: the last possible token takes it
        rest -= weights_[i];
        if (rest < 0.0) break;
    }
    return chosen < 0 ? first_at_least(kernels, logits, vocabulary, peak) : first + chosen;
}

double Sampler::total_mass(const Kernels& kernels, const float* logits, int vocabulary,
                           float peak) const {
    double mass = 0.0;
    for (int block = 0; block < vocabulary; block += kMassBlock) {
        mass +=
            kernels.sum_exp(logits + block, std::min(kMassBlock, vocabulary - block), peak, 1.0f);
    }
    return mass;
}

// weights_ = exp((logit - peak) * factor) of candidates_, in their order; returns the sum.
double Sampler::weigh(const Kernels& kernels, float peak, float factor) {
    weights_.resize(candidates_.size());
    for (size_t i = 0; i < candidates_.size(); ++i) weights_[i] = candidates_[i].logit;
    const int n = static_cast<int>(candidates_.size());
    kernels.exp_all(weights_.data(), n, peak, factor, weights_.data());
    double total = 0.0;
    for (float weight : weights_) total += weight;
    return total;
}

// Whether candidates_ must hold all that top_k and top_p keep.
bool Sampler::reaches_far_enough(const Kernels& kernels, double mass, int vocabulary, float peak) {
    if (static_cast<int>(candidates_.size()) == vocabulary) return true;
    if (params_.top_k > 0) return static_cast<int>(candidates_.size()) >= params_.top_k;
    // Beyond what rounding could undo.
    return weigh(kernels, peak, 1.0f) > mass * params_.top_p * (1.0 + 1e-5);
}

// Leaves in candidates_ what top_k and top_p keep, best first; min_p is only pre-filtered.
void Sampler::shortlist(const Kernels& kernels, const float* logits, int vocabulary, float peak) {
    const auto collect = [&](float floor) {
        candidates_.clear();
        each_above(kernels, logits, vocabulary, floor,
                   [&](int i) { candidates_.push_back({logits[i], i}); });
    };
    double mass = 0.0;
    if (params_.top_k == 0 && params_.top_p >= 1.0f) {
        collect(peak + std::log(params_.min_p) - 1e-3f);
    } else {
        if (params_.top_k == 0) mass = total_mass(kernels, logits, vocabulary, peak);
        float window = kFirstWindow;
        collect(peak - window);
        while (!reaches_far_enough(kernels, mass, vocabulary, peak) && window < 1e30f) {
            window *= kNextWindow;
            collect(peak - window);
        }
    }
    if (params_.top_k > 0) keep_top_k();
    std::sort(candidates_.begin(), candidates_.end(), better);
    if (params_.top_p < 1.0f) {
        const double kept = weigh(kernels, peak, 1.0f);
        keep_top_p(params_.top_k > 0 ? kept : mass);
    }
}

void Sampler::keep_top_k() {
    const size_t wanted = static_cast<size_t>(params_.top_k);
    if (wanted >= candidates_.size()) return;
    std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k - 1,
                     candidates_.end(), better);
    candidates_.resize(wanted);
}

// The smallest prefix whose mass reaches top_p of `mass`; weights_ go with candidates_.
void Sampler::keep_top_p(double mass) {
    const double wanted = mass * static_cast<double>(params_.top_p);
    double covered = 0.0;
    size_t kept = 0;
    while (kept < candidates_.size() && (kept == 0 || covered < wanted)) {
        covered += weights_[kept++];
    }
    candidates_.resize(kept);
}

int Sampler::draw_truncated(const Kernels& kernels, const float* logits, int vocabulary,
                            float peak) {
    shortlist(kernels, logits, vocabulary, peak);
    if (params_.min_p > 0.0f) {
        weigh(kernels, peak, 1.0f);
        size_t kept = candidates_.size();
        while (kept > 1 && weights_[kept - 1] < params_.min_p) --kept;
        candidates_.resize(kept);
    }
    const double total = weigh(kernels, peak, 1.0f / params_.temperature);
    double rest = total * uniform(params_.seed, generated_);
    for (size_t i = 0; i < candidates_.size(); ++i) {
        rest -= weights_[i];
        if (rest < 0.0) return candidates_[i].token;
    }
    return candidates_.back().token;
}

}  // namespace heddle
