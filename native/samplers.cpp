#include "samplers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace heddle {

namespace {

// Samplers examine masses within this share of a limit even if rounding puts them beyond it.
constexpr double kSlack = 1e-5;
constexpr float kLogitSlack = 1e-3f;

// The largest penalty of DRY. So if all tokens are repetitions, one of them is still the best.
constexpr float kMostDry = 1e30f;

// At this temperature, all candidates have the same weight in float precision. At a higher
// temperature, scores and their penalties would exceed the range of floats.
constexpr float kHottest = 1e15f;

// The sampler `infill` compares this many candidates with each other. It removes candidates below
// this share of the weight.
constexpr int kMostFillings = 256;
constexpr double kLeastFilling = 0.2;

// Keeps the fewest best of the shown candidates whose total weight is at least `wanted`, at least
// one candidate.
void cut_at_mass(Candidates& c, double wanted) {
    const std::vector<float>& weights = c.weights();
    double covered = 0.0;
    size_t kept = 0;
    while (kept < weights.size() && (kept == 0 || covered < wanted)) covered += weights[kept++];
    c.cut(kept);
}

// Shows candidates that weigh at least `lowest`, and always the best candidate. The limit includes
// a margin for rounding.
void show_down_to(Candidates& c, double lowest) {
    const float floor = static_cast<float>(std::log(std::min(lowest, 1.0)));
    c.show_above(c.peak() + (floor - kLogitSlack) / c.factor());
}

// Keeps candidates that weigh at least `lowest`, and always the best one.
void cut_at_weight(Candidates& c, double lowest) {
    show_down_to(c, lowest);
    const std::vector<float>& weights = c.weights();
    size_t kept = weights.size();
    while (kept > 1 && weights[kept - 1] < lowest) --kept;
    c.cut(kept);
}

void penalties(Candidates& c, const SamplerParams& p, SamplerState& state) {
    c.edit(state.history.counts(), [&](float logit, const History::Count& count) {
        const float r = p.repetition_penalty;
        if (count.recent > 0) logit = logit > 0.0f ? logit / r : logit * r;
        logit -= p.frequency_penalty * static_cast<float>(count.output);
        if (count.output > 0) logit -= p.presence_penalty;
        return logit;
    });
}

void dry(Candidates& c, const SamplerParams& p, SamplerState& state) {
    const std::vector<int>& tokens = state.history.tokens();
    const int total = static_cast<int>(tokens.size());
    const int window = p.dry_penalty_last_n < 0 ? total : std::min(total, p.dry_penalty_last_n);
    const int limit = p.dry_breakers ? p.dry_breakers->tokens_since(tokens, window) : window;
    if (limit < p.dry_allowed_length) return;
    std::unordered_map<int, int> lengths = repetitions(tokens, window, limit, p.dry_allowed_length);
    for (auto it = lengths.begin(); p.dry_breakers && it != lengths.end();) {
        it = p.dry_breakers->is_breaker(it->first) ? lengths.erase(it) : std::next(it);
    }
    c.edit(lengths, [&](float logit, int length) {
        const float excess = static_cast<float>(length - p.dry_allowed_length);
        return logit - std::min(p.dry_multiplier * std::pow(p.dry_base, excess), kMostDry);
    });
}

void top_n_sigma(Candidates& c, const SamplerParams& p, SamplerState&) {
    const double count = c.size();
    double sum = 0.0, squares = 0.0;
    const double peak = c.peak();  // squared differences from the peak keep their precision
    c.each_logit([&](float logit) { sum += logit - peak; });
    const double mean = sum / count;
    c.each_logit([&](float logit) {
        const double distance = logit - peak - mean;
        squares += distance * distance;
    });
    const float floor = static_cast<float>(peak - p.top_n_sigma * std::sqrt(squares / count));
    c.show_above(floor);
    size_t kept = c.shown().size();
    while (kept > 1 && c.shown()[kept - 1].logit < floor) --kept;
    c.cut(kept);
}

void top_k(Candidates& c, const SamplerParams& p, SamplerState&) {
    c.show_best(p.top_k);
    c.cut(static_cast<size_t>(p.top_k));
}

// Takes candidates in the order of their deviation from the entropy. Candidates are sorted by
// logit, and therefore by surprise. So the walk starts where the entropy is, and goes to both
// sides.
class OutwardWalk {
  public:
    OutwardWalk(const Candidates& c, float expected) : c_(c), expected_(expected) {
        while (below_ < shown() && log_weight(below_) > expected_) ++below_;
        run_begin_ = below_;
        next_run_above();
    }

    bool at_the_bottom() const { return below_ == shown(); }

    // Index of the nearest candidate that is not taken yet, ties to the better candidate. At least
    // one must be left.
    size_t take() {
        if (above_ < above_end_ && (at_the_bottom() || deviation(above_) <= deviation(below_))) {
            const size_t taken = above_++;
            if (above_ == above_end_) next_run_above();
            return taken;
        }
        return below_++;
    }

  private:
    size_t shown() const { return c_.shown().size(); }
    float log_weight(size_t i) const { return (c_.shown()[i].logit - c_.peak()) * c_.factor(); }
    float deviation(size_t i) const { return std::abs(log_weight(i) - expected_); }

    // The walk takes equal logits above the entropy from the first to the last.
    void next_run_above() {
        above_end_ = run_begin_;
        if (above_end_ == 0) return void(above_ = 0);
        above_ = above_end_ - 1;
        while (above_ > 0 && c_.shown()[above_ - 1].logit == c_.shown()[above_].logit) --above_;
        run_begin_ = above_;
    }

    const Candidates& c_;
    float expected_;
    size_t below_ = 0;
    size_t above_ = 0, above_end_ = 0, run_begin_ = 0;
};

void typical_p(Candidates& c, const SamplerParams& p, SamplerState&) {
    const double mass = c.mass(), wanted = mass * p.typical_p;
    const float expected =
        static_cast<float>(std::log(mass) - c.entropy());  // as logarithm of a weight
    // The walk may go below the shown candidates. Then it starts again with more shown candidates.
    for (double share = 1.0;; share /= 16.0) {  // of the mass outside `wanted`
        const double unseen = (1.0 - p.typical_p) * share;
        const bool all = c.listed() || share < 1e-3;
        if (all) {
            c.show_best(c.size());
        } else {
            c.show_mass(mass * (1.0 - unseen) * (1.0 + kSlack));
        }
        const size_t shown = c.shown().size();
        const std::vector<float>& weights = c.weights();
        std::vector<bool> chosen(shown, false);
        OutwardWalk walk(c, expected);
        double covered = 0.0;
        for (size_t taken = 0; taken < shown && covered < wanted; ++taken) {
            if (!all && walk.at_the_bottom()) break;
            const size_t i = walk.take();
            chosen[i] = true;
            covered += weights[i];
        }
        if (all || covered >= wanted) return c.keep(chosen);
    }
}

void top_p(Candidates& c, const SamplerParams& p, SamplerState&) {
    const double wanted = c.mass() * static_cast<double>(p.top_p);
    c.show_mass(wanted * (1.0 + kSlack));
    cut_at_mass(c, wanted);
}

void min_p(Candidates& c, const SamplerParams& p, SamplerState&) { cut_at_weight(c, p.min_p); }

// The best candidate weighs 1, so its probability is 1 / mass.
void top_a(Candidates& c, const SamplerParams& p, SamplerState&) {
    cut_at_weight(c, p.top_a / c.mass());
}

void xtc(Candidates& c, const SamplerParams& p, SamplerState& state) {
    if (uniform(p.seed, state.history.output_tokens(), 1) >= p.xtc_probability) return;
    const double lowest = c.mass() * p.xtc_threshold;
    show_down_to(c, lowest);
    const std::vector<float>& weights = c.weights();
    size_t above = 0;
    while (above < weights.size() && weights[above] >= lowest) ++above;
    if (above > 1) c.drop_best(above - 1);
}

// If the text of one candidate is a prefix of the text of another, the likelier candidate gets the
// mass of both.
void merge(std::vector<double>& masses, const std::vector<std::string_view>& texts) {
    std::vector<bool> gone(masses.size(), false);
    for (size_t i = 0; i < masses.size(); ++i) {
        if (texts[i].empty()) continue;
        for (size_t j = 0; j < masses.size() && !gone[i]; ++j) {
            if (i == j || gone[j] || texts[j].substr(0, texts[i].size()) != texts[i]) continue;
            const size_t into = masses[j] > masses[i] ? j : i, of = into == i ? j : i;
            masses[into] += masses[of];
            masses[of] = 0.0;
            gone[of] = true;
        }
    }
}

// The candidates that `infill` keeps. Empty if the output should end with a token that is not a
// candidate.
std::vector<bool> worth_filling(const std::vector<double>& masses, const std::vector<bool>& ends) {
    double kept = 0.0;
    size_t others = 0;
    for (size_t i = 0; i < masses.size(); ++i) {
        if (!ends[i] && masses[i] < kLeastFilling) continue;
        kept += masses[i];
        others += !ends[i];
    }
    if (others == 0) return {};
    const double share = kept / static_cast<double>(others + 1);
    std::vector<bool> chosen(ends);
    for (size_t i = 0; i < masses.size(); ++i) {
        if (masses[i] >= std::max(kLeastFilling, share)) chosen[i] = true;
    }
    return chosen;
}

void infill(Candidates& c, const SamplerParams& p, SamplerState& state) {
    c.show_best(kMostFillings);
    c.cut(kMostFillings);
    const std::vector<float>& weights = c.weights();
    std::vector<double> masses(weights.begin(), weights.end());
    std::vector<std::string_view> texts;
    std::vector<bool> ends;
    double all = 0.0, ending = 0.0;
    for (size_t i = 0; i < masses.size(); ++i) {
        const int token = c.shown()[i].token;
        texts.push_back(p.pieces->text(token));
        ends.push_back(p.pieces->is_end(token));
        all += masses[i];
        if (ends[i]) ending += masses[i];
    }
    if (3.0 * ending * static_cast<double>(masses.size()) > all - ending) return c.keep(ends);
    for (double& mass : masses) mass /= all;
    merge(masses, texts);
    const std::vector<bool> chosen = worth_filling(masses, ends);
    if (!chosen.empty()) return c.keep(chosen);
    if (state.end < 0) return c.cut(1);
    c.keep_only(state.end);
}

void temperature(Candidates& c, const SamplerParams& p, SamplerState&) {
    const int left = c.size();
    const float degree = std::min(p.temperature, kHottest);
    if (p.dynatemp_range == 0.0f || left == 1) return c.cool(degree);
    const float low = std::max(0.0f, degree - p.dynatemp_range);
    const float high = degree + p.dynatemp_range;
    const double spread = c.entropy() / std::log(static_cast<double>(left));
    const double reach = std::pow(std::max(0.0, spread), p.dynatemp_exponent);
    c.cool(static_cast<float>(low + (high - low) * reach));
}

void mirostat(Candidates& c, const SamplerParams&, SamplerState& state) {
    state.log_mass = std::log(c.mass());
    cut_at_weight(c, std::exp(state.log_mass - state.mu * std::log(2.0)));
}

using P = SamplerParams;

bool penalises(const P& p) {
    return (p.repetition_penalty != 1.0f && p.repeat_last_n != 0) || p.presence_penalty != 0.0f ||
           p.frequency_penalty != 0.0f;
}

bool repels(const P& p) { return p.dry_multiplier > 0.0f && p.dry_penalty_last_n != 0; }

bool cools(const P& p) {
    return p.temperature > 0.0f && (p.temperature != 1.0f || p.dynatemp_range > 0.0f);
}

// name, cuts, asked, apply
constexpr Stage kStages[] = {
    {"penalties", false, penalises, penalties},
    {"dry", false, repels, dry},
    {"top_n_sigma", true, [](const P& p) { return p.top_n_sigma > 0.0f; }, top_n_sigma},
    {"top_k", true, [](const P& p) { return p.top_k > 0; }, top_k},
    {"typ_p", true, [](const P& p) { return p.typical_p < 1.0f; }, typical_p},
    {"top_p", true, [](const P& p) { return p.top_p < 1.0f; }, top_p},
    {"min_p", true, [](const P& p) { return p.min_p > 0.0f; }, min_p},
    {"top_a", true, [](const P& p) { return p.top_a > 0.0f; }, top_a},
    {"xtc", true, [](const P& p) { return p.xtc_probability > 0.0f; }, xtc},
    {"infill", true, [](const P& p) { return p.pieces != nullptr; }, infill},
    {"temperature", false, cools, temperature},
};

bool follows_surprise(const P& p) { return p.temperature > 0.0f && p.mirostat != 0; }

}  // namespace

TokenPieces::TokenPieces(const std::vector<std::string>& texts, std::vector<int> ends)
    : ends_(std::move(ends)) {
    for (const std::string& text : texts) {
        begins_.push_back(bytes_.size());
        bytes_ += text;
    }
    begins_.push_back(bytes_.size());
    std::sort(ends_.begin(), ends_.end());
}

std::string_view TokenPieces::text(int token) const {
    const size_t place = static_cast<size_t>(token);
    if (place + 1 >= begins_.size()) return {};  // padding of the vocabulary
    return std::string_view(bytes_).substr(begins_[place], begins_[place + 1] - begins_[place]);
}

bool TokenPieces::is_end(int token) const {
    return std::binary_search(ends_.begin(), ends_.end(), token);
}

const Stage kPenalties = kStages[0];
const Stage kMirostat = {"mirostat", false, follows_surprise, mirostat};

bool active(const Stage& stage, const SamplerParams& p) {
    return stage.asked(p) && (!stage.cuts || (p.temperature > 0.0f && p.mirostat == 0));
}

const Stage* find_stage(const std::string& name) {
    for (const Stage& stage : kStages) {
        if (name == stage.name) return &stage;
    }
    throw std::invalid_argument("no native sampler is called " + name);
}

void set_number(SamplerParams& params, const std::string& name, double value) {
    for (const SamplerNumber& number : kSamplerNumbers) {
        if (name != number.name) continue;
        std::visit(
            [&](auto member) {
                using Number = std::decay_t<decltype(params.*member)>;
                params.*member = static_cast<Number>(value);
            },
            number.member);
        return;
    }
    throw std::invalid_argument("no number of the native sampler is called " + name);
}

void adapt_mirostat(const Candidates& candidates, Candidate drawn, const SamplerParams& params,
                    SamplerState& state) {
    const double log_weight = (drawn.logit - candidates.peak()) * candidates.factor();
    const double surprise = (state.log_mass - log_weight) / std::log(2.0);
    state.mu -= params.mirostat_eta * (surprise - params.mirostat_tau);
}

float uniform(uint64_t seed, uint32_t index, uint32_t stream) {
    uint32_t x[4] = {index, stream, 0, 0};
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

}  // namespace heddle
