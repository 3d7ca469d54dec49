"""The reference of the sampler chain, in NumPy float64. Tests compare the native sampler with it.

The chain adds `logit_bias`, the bias of engram tables and those of logits processors. It excludes
tokens that a processor, a grammar, `bad_words` or `min_tokens` forbid. Then the samplers run in the
order of `params.samplers`, each on the candidates of the previous sampler. Then the chain draws a
token by inverse CDF: the first candidate whose cumulative probability exceeds
:func:`heddle.extensions.reference.philox.uniform`.
Candidates are in order of id until a sampler other than XTC removes some of them. From then on they
are in descending order of logit, ties by lower id.

At temperature 0, only penalties and DRY run. Then the chain takes the highest logit, ties by lower
id. With mirostat, only penalties, DRY and temperature run, then mirostat itself.

An implementation in another precision may differ only where a probability mass is within its
rounding error of a limit or of the draw.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.reference.engram_bias import engram_bias
from heddle.extensions.reference.philox import uniform
from heddle.extensions.reference.repetition import forbidden, latest, repetition_lengths
from heddle.outputs import TokenLogprob
from heddle.sampling_params import Stage
from heddle.token_rules import NO_EDIT, NO_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.sampling_params import SamplingParams
    from heddle.token_rules import LogitEdit, TokenRules

    Float64 = NDArray[np.float64]
    Ids = NDArray[np.int64]

_MOST_FILLINGS = 256
"""Most candidates that the sampler `infill` considers. It compares all pairs."""

_COLDEST, _HOTTEST = 1e-15, 1e15
"""At a temperature below the first, only the best token has a probability above 0. Above the
second, all tokens have the same probability."""

_MOST_DRY = 1e30
"""Most that DRY subtracts. So if all tokens are repetitions, one of them is still the best."""


@dataclass(frozen=True)
class Past:
    """The state of a sequence when a token is sampled.

    Attributes:
        prompt: token ids.
        output: token ids.
        rules: the token rules of the request.
        mu: mirostat's bound in bits; None: its first value.
        edit: what a grammar and logits processors do to the logits.
        end: the first token that ends the output and is not excluded. The chain sets it.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    rules: TokenRules = NO_RULES
    mu: float | None = None
    edit: LogitEdit = NO_EDIT
    end: int | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]


@dataclass(frozen=True)
class Candidates:
    """Tokens that the chain may draw.

    Attributes:
        ids: (n,), in the order of the draw.
        logits: (n,), divided by the temperature once the sampler `temperature` has run.
        cut: whether a sampler has removed candidates. Then the best candidate comes first.
    """

    ids: Ids
    logits: Float64
    cut: bool = False

    @property
    def probabilities(self) -> Float64:
        """Probabilities (n,) in the order of `ids`. They sum to 1."""
        mass = np.exp(self.logits - self.logits.max())
        result: Float64 = mass / mass.sum()
        return result

    @property
    def entropy(self) -> float:
        """-sum(p log p), in nats."""
        p = self.probabilities[self.probabilities > 0]
        return float(-(p * np.log(p)).sum())

    def best_first(self) -> Candidates:
        """The candidates by descending logit, ties by lower id."""
        order = np.lexsort((self.ids, -self.logits))
        return Candidates(self.ids[order], self.logits[order], self.cut)

    def keep(self, chosen: NDArray[np.bool_]) -> Candidates:
        """Remove all candidates that are not chosen."""
        return Candidates(self.ids[chosen], self.logits[chosen], cut=True).best_first()

    def first(self, count: int) -> Candidates:
        """Keep only the best `count` candidates."""
        ordered = self.best_first()
        return Candidates(ordered.ids[:count], ordered.logits[:count], cut=True)

    def changed(self, change: Callable[[int, float], float]) -> Candidates:
        """The candidates with each logit replaced by `change(token, logit)`."""
        pairs = zip(self.ids.tolist(), self.logits.tolist(), strict=True)
        logits = np.array([change(token, logit) for token, logit in pairs])
        result = Candidates(self.ids, logits, self.cut)
        return result.best_first() if self.cut else result


def _prefix(mass: Float64, share: float) -> int:
    """Length of the shortest prefix whose sum is at least `share` of the total."""
    cumulative = np.cumsum(mass)
    return int(np.searchsorted(cumulative, share * cumulative[-1])) + 1


# --- the samplers --------------------------------------------------------------------------------


def penalties(candidates: Candidates, params: SamplingParams, past: Past) -> Candidates:
    """Repetition, frequency and presence penalties.

    A token among the last `repeat_last_n` has its logit divided by `repetition_penalty` if
    positive and multiplied by it otherwise (Keskar et al. 2019, arXiv:1909.05858, section 4.1, with
    the sign handled as in its code). A token that the output has n > 0 times then loses
    `n * frequency_penalty + presence_penalty` (OpenAI's API reference).
    """
    recent, counts = set(latest(past.tokens, params.repeat_last_n)), Counter(past.output)
    penalty = params.repetition_penalty

    def change(token: int, logit: float) -> float:
        if token in recent:
            logit = logit / penalty if logit > 0 else logit * penalty
        count = counts[token]
        return logit - count * params.frequency_penalty - (count > 0) * params.presence_penalty

    return candidates.changed(change)


def dry(candidates: Candidates, params: SamplingParams, past: Past) -> Candidates:
    """DRY ("don't repeat yourself"; p-e-w, oobabooga/text-generation-webui PR 5677).

    A token that would continue a repetition of n >= `dry_allowed_length` tokens loses
    `dry_multiplier * dry_base ** (n - dry_allowed_length)`; see
    :func:`heddle.extensions.reference.repetition.repetition_lengths`.
    """
    tokens = latest(past.tokens, params.dry_penalty_last_n)
    breakers = past.rules.breakers.sequences if past.rules.breakers is not None else ()
    lengths = repetition_lengths(tokens, params.dry_allowed_length, breakers)

    def change(token: int, logit: float) -> float:
        if token not in lengths:
            return logit
        excess = lengths[token] - params.dry_allowed_length
        power = math.log(params.dry_multiplier) + excess * math.log(params.dry_base)
        return logit - math.exp(min(power, math.log(_MOST_DRY)))

    return candidates.changed(change)


def top_n_sigma(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Keep logits >= max - n * (standard deviation) (Tang et al. 2024, arXiv:2411.07641)."""
    logits = candidates.logits
    return candidates.keep(logits >= logits.max() - params.top_n_sigma * logits.std())


def top_k(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Keep the k highest logits, ties to the lower id (Fan et al. 2018, arXiv:1805.04833)."""
    return candidates.first(params.top_k)


def typical_p(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Locally typical sampling (Meister et al. 2022, arXiv:2202.00666).

    Sorts candidates by ascending |-log p - H|, ties by higher probability and then by lower id.
    Keeps the shortest prefix whose mass is at least `typical_p`.
    """
    ordered = candidates.best_first()
    p = ordered.probabilities
    with np.errstate(divide="ignore"):
        order = np.argsort(np.abs(-np.log(p) - ordered.entropy), kind="stable")
    chosen = np.zeros(len(p), bool)
    chosen[order[: _prefix(p[order], params.typical_p)]] = True
    return ordered.keep(chosen)


def top_p(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Nucleus sampling: keep the shortest prefix, in descending order of p, whose mass is at least
    `top_p` (Holtzman et al. 2019, arXiv:1904.09751)."""
    return candidates.first(_prefix(candidates.best_first().probabilities, params.top_p))


def min_p(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Keep p >= min_p * max(p) (Nguyen et al. 2024, arXiv:2407.01082)."""
    return candidates.keep(np.exp(candidates.logits - candidates.logits.max()) >= params.min_p)


def top_a(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """p >= top_a * max(p)**2 (BlinkDL, RWKV-LM)."""
    p = candidates.probabilities
    return candidates.keep(p >= params.top_a * p.max() ** 2)


def xtc(candidates: Candidates, params: SamplingParams, past: Past) -> Candidates:
    """Exclude top choices (p-e-w, oobabooga/text-generation-webui PR 6335).

    With probability `xtc_probability`, drop all tokens with p >= `xtc_threshold` except the least
    likely of them.
    """
    assert params.seed is not None, "the engine draws a seed before sampling"
    if uniform(params.seed, len(past.output), 1) >= params.xtc_probability:
        return candidates
    ordered = candidates.best_first()
    dropped = set(ordered.ids[: max(0, (ordered.probabilities >= params.xtc_threshold).sum() - 1)])
    left = np.array([token not in dropped for token in candidates.ids])
    return Candidates(candidates.ids[left], candidates.logits[left], candidates.cut)


def infill(candidates: Candidates, _params: SamplingParams, past: Past) -> Candidates:
    """Choose candidates for fill-in-the-middle: end the text when unsure (llama.cpp, PR 9896).

    Considers only the best 256 candidates. E is the mass of the end tokens (which end the output),
    T the mass of the other tokens. If 3 * E * (number of candidates) > T, keeps only the end
    tokens.

    Otherwise, if the text of one token begins with the text of another token, merges their masses
    into the likelier token. Keeps all end tokens, and each other token whose mass is at least 0.2,
    and at least 1 / (1 + number of these others) of the mass of all these. If there are no other
    tokens, keeps the first end token that is not excluded, even if it is not a candidate. If there
    is no such end token, keeps the likeliest candidate.
    """
    assert past.rules.pieces is not None, "the engine passes the pieces with this sampler"
    ends, texts = past.rules.pieces.ends, past.rules.pieces.texts
    ordered = candidates.first(_MOST_FILLINGS)
    masses = ordered.probabilities.tolist()
    is_end = np.isin(ordered.ids, ends)
    ending = sum(mass for mass, end in zip(masses, is_end, strict=True) if end)
    if 3 * ending * len(masses) > 1 - ending:
        return ordered.keep(is_end)
    _merge(masses, [texts[id] for id in ordered.ids])
    merged = np.array(masses)
    other = ~is_end & (merged >= 0.2)
    if not other.any():
        return ordered.first(1) if past.end is None else Candidates(*_only(past.end), cut=True)
    share = merged[other | is_end].sum() / (1 + other.sum())
    return ordered.keep(is_end | (other & (merged >= share)))


def _only(token: int) -> tuple[Ids, Float64]:
    return np.array([token]), np.zeros(1)


def _merge(masses: list[float], texts: Sequence[bytes]) -> None:
    """If one text is a prefix of another, add the smaller mass to the larger mass."""
    merged = [False] * len(masses)
    for i, begin in enumerate(texts):
        for j, text in enumerate(texts):
            if merged[i]:
                break
            if i == j or merged[j] or not begin or not text.startswith(begin):
                continue
            into, of = (j, i) if masses[j] > masses[i] else (i, j)
            masses[into] += masses[of]
            masses[of], merged[of] = 0.0, True


def temperature(candidates: Candidates, params: SamplingParams, _past: Past) -> Candidates:
    """Logits divided by the temperature.

    With `dynatemp_range` r the temperature is T - r + 2 r * (H / log n) ** `dynatemp_exponent`. The
    lower end T - r is at least 0. H is the entropy of the n candidates (kalomaze, llama.cpp PR
    4972). Below 1e-15, only the best candidate is left. Above 1e15, T is 1e15.
    """
    degree, count = min(params.temperature, _HOTTEST), len(candidates.ids)
    if params.dynatemp_range > 0 and count > 1:
        low, high = max(0.0, degree - params.dynatemp_range), degree + params.dynatemp_range
        spread = candidates.entropy / math.log(count)
        degree = low + (high - low) * spread**params.dynatemp_exponent
    if degree < _COLDEST:
        return candidates.first(1)
    return replace(candidates, logits=candidates.logits / degree)


def mirostat(candidates: Candidates, params: SamplingParams, past: Past) -> Candidates:
    """Mirostat 2 (Basu et al. 2021, arXiv:2007.14966).

    Keep tokens whose surprise -log2 p is at most mu bits, and always the likeliest token. The first
    mu is 2 * `mirostat_tau`.
    """
    mu = 2 * params.mirostat_tau if past.mu is None else past.mu
    relative = candidates.logits - candidates.logits.max()
    near = relative >= math.log(np.exp(relative).sum()) - mu * math.log(2)
    return candidates.keep(near) if near.any() else candidates.first(1)


@dataclass(frozen=True)
class Sampler:
    """A row of the chain's table.

    Attributes:
        apply: its definition.
        cuts: whether it removes candidates. Such samplers do not run with mirostat or at
            temperature 0.
        asked: whether parameters ask for it.
    """

    apply: Callable[[Candidates, SamplingParams, Past], Candidates]
    cuts: bool = True
    asked: Callable[[SamplingParams], bool] = lambda _: True

    def runs(self, params: SamplingParams) -> bool:
        """Whether it has an effect with these parameters."""
        return self.asked(params) and not (
            self.cuts and (params.temperature == 0 or params.mirostat)
        )


_SAMPLERS = {
    Stage.PENALTIES: Sampler(penalties, cuts=False),
    Stage.DRY: Sampler(dry, cuts=False, asked=lambda p: p.dry_multiplier > 0),
    Stage.TOP_N_SIGMA: Sampler(top_n_sigma, asked=lambda p: p.top_n_sigma > 0),
    Stage.TOP_K: Sampler(top_k, asked=lambda p: p.top_k > 0),
    Stage.TYPICAL_P: Sampler(typical_p, asked=lambda p: p.typical_p < 1),
    Stage.TOP_P: Sampler(top_p, asked=lambda p: p.top_p < 1),
    Stage.MIN_P: Sampler(min_p, asked=lambda p: p.min_p > 0),
    Stage.TOP_A: Sampler(top_a, asked=lambda p: p.top_a > 0),
    Stage.XTC: Sampler(xtc, asked=lambda p: p.xtc_probability > 0),
    Stage.INFILL: Sampler(infill),
    Stage.TEMPERATURE: Sampler(temperature, cuts=False, asked=lambda p: p.temperature > 0),
}


# --- the chain -----------------------------------------------------------------------------------


def allowed(vocabulary: int, params: SamplingParams, past: Past) -> Ids:
    """Token ids that no rule, grammar or processor excludes, ascending. May be empty."""
    left = np.ones(vocabulary, np.bool_)
    excluded = forbidden(params, past.output, past.rules)
    left[[token for token in excluded if token < vocabulary]] = False
    if past.edit.mask:
        mask = np.frombuffer(past.edit.mask, np.uint8)
        bits = np.unpackbits(mask, bitorder="little")[:vocabulary]
        left[: len(bits)] &= bits.astype(np.bool_)
        left[len(bits) :] = False
    bias = np.frombuffer(past.edit.bias, np.float32)[:vocabulary]
    left[: len(bias)] &= bias > -np.inf
    return np.flatnonzero(left)


def _before_mirostat(logits: NDArray[np.float32], params: SamplingParams, past: Past) -> Candidates:
    scores = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        if math.isfinite(bias):  # the rules exclude the others
            scores[token] += bias
    for token, bias in engram_bias(past.rules.of(EngramBias), [*past.prompt, *past.output]).items():
        if token < len(scores):
            scores[token] += bias
    added = np.frombuffer(past.edit.bias, np.float32)[: len(scores)]
    scores[: len(added)] += added
    ids = allowed(len(scores), params, past)
    candidates = Candidates(ids, scores[ids])
    if past.rules.pieces is not None:
        ends = (token for token in past.rules.pieces.ends if token in ids)
        past = replace(past, end=next(ends, None))
    for stage in params.samplers:
        sampler = _SAMPLERS[stage]
        if sampler.runs(params):
            candidates = sampler.apply(candidates, params, past)
    return candidates


def filtered(
    logits: NDArray[np.float32], params: SamplingParams, past: Past
) -> tuple[Ids, Float64]:
    """Candidate ids in the order of the draw, and their probabilities, which sum to 1."""
    candidates = _before_mirostat(logits, params, past)
    if params.temperature == 0:
        return candidates.ids[[candidates.logits.argmax()]], np.ones(1)
    if params.mirostat == 2:
        candidates = mirostat(candidates, params, past)
    return candidates.ids, candidates.probabilities


def adapted_mu(
    logits: NDArray[np.float32], params: SamplingParams, past: Past, token: int
) -> float:
    """Mirostat's bound after `token`: lower by eta * (surprise - tau).

    The surprise, in bits, uses the distribution before mirostat removes tokens.
    """
    candidates = _before_mirostat(logits, params, past)
    surprise = -math.log2(candidates.probabilities[candidates.ids == token][0])
    mu = 2 * params.mirostat_tau if past.mu is None else past.mu
    return mu - params.mirostat_eta * (surprise - params.mirostat_tau)


def sample(logits: NDArray[np.float32], params: SamplingParams, past: Past) -> TokenLogprob:
    """Sample the next token, with the logprobs that `params` asks for.

    Logprobs are the log-softmax of the raw logits, before bias and penalties, or those of the
    draw with `post_sampling_probs`. They are NaN if
    `params` does not ask for them. `params.seed` must be set unless the temperature is 0.
    """
    ids, probabilities = filtered(logits, params, past)
    choice = 0
    if params.temperature > 0:
        assert params.seed is not None, "the engine draws a seed before sampling"
        draw = uniform(params.seed, len(past.output))
        cumulative = np.cumsum(probabilities)
        choice = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    token = int(ids[choice])
    if params.logprobs is None:
        return TokenLogprob(token, math.nan)
    if params.post_sampling_probs:
        with np.errstate(divide="ignore"):
            left = np.log(probabilities)
        order = np.argsort(-probabilities, kind="stable")[: params.logprobs]
        return TokenLogprob(
            token, float(left[choice]), tuple((int(ids[i]), float(left[i])) for i in order)
        )
    logprobs = log_softmax(logits)
    best = np.argsort(-logits, kind="stable")[: params.logprobs]
    return TokenLogprob(
        token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best)
    )


def log_softmax(logits: NDArray[np.float32]) -> Float64:
    """Natural logarithms of softmax(logits) over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
