"""The sampler chain in NumPy float64: the truth that the native sampler is tested against.

The chain, in order:

1. `logit_bias` is added.
2. Penalties. A token of the prompt or the output has its logit divided by `repetition_penalty` if
   positive and multiplied by it otherwise (Keskar et al. 2019, arXiv:1909.05858). A token that the
   output holds n > 0 times then loses `presence_penalty + n * frequency_penalty`.
3. Truncation at temperature 1, each step on what the one before left. With p the probabilities:
   `top_k` keeps the k highest logits, ties to the lower id; `top_p` keeps the shortest prefix, in
   descending order of p, whose share of the mass is at least `top_p`; `min_p` keeps the tokens with
   p >= min_p * max(p).
4. Temperature: probabilities proportional to exp(logit / temperature) over the tokens kept.
5. One draw by inverse CDF: the first candidate whose cumulative probability exceeds
   :func:`heddle.sampling.philox.uniform`. Candidates are in descending order of logit, ties by
   lower id, if any truncation is asked for, else in order of id.

At temperature 0 steps 3 to 5 give way to the highest logit, ties to the lower id.

An implementation in another precision may part from this one where a mass falls within its rounding
error of a limit or of the draw, and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from heddle.sampling.philox import uniform
from heddle.types import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.types import SamplingParams

    Float64 = NDArray[np.float64]


def adjusted(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> Float64:
    """Logits (vocabulary,) after bias and penalties."""
    result = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        result[token] += bias
    seen = sorted({*prompt, *output})
    penalty = params.repetition_penalty
    result[seen] = np.where(result[seen] > 0, result[seen] / penalty, result[seen] * penalty)
    for token, count in Counter(output).items():
        result[token] -= params.presence_penalty + count * params.frequency_penalty
    return result


def filtered(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> tuple[NDArray[np.int64], Float64]:
    """Candidate ids in the order of the draw, and their probabilities, which sum to 1."""
    scores = adjusted(logits, params, prompt, output)
    if params.temperature == 0:
        return np.array([scores.argmax()]), np.ones(1)
    ids = np.arange(len(scores))
    if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
        ids = _truncated(scores, params)
    with np.errstate(over="ignore"):  # a tiny temperature takes the others to -inf: mass 0
        mass = np.exp((scores[ids] - scores.max()) / params.temperature)
    return ids, mass / mass.sum()


def _truncated(scores: Float64, params: SamplingParams) -> NDArray[np.int64]:
    ids = np.argsort(-scores, kind="stable")
    if params.top_k > 0:
        ids = ids[: params.top_k]
    mass = np.exp(scores[ids] - scores[ids[0]])
    if params.top_p < 1:
        cumulative = np.cumsum(mass)
        ids = ids[: np.searchsorted(cumulative, params.top_p * cumulative[-1]) + 1]
    kept: NDArray[np.int64] = ids[mass[: len(ids)] >= params.min_p]
    return kept


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> TokenLogprob:
    """The token after `prompt` and `output`, with the logprobs that `params` asks for.

    Logprobs are the log-softmax of the raw logits, before bias and penalties; NaN when not asked
    for. `params.seed` must be set unless the temperature is 0.
    """
    ids, probabilities = filtered(logits, params, prompt, output)
    choice = 0
    if params.temperature > 0:
        assert params.seed is not None, "the engine draws a seed before sampling"
        draw = uniform(params.seed, len(output))
        cumulative = np.cumsum(probabilities)
        choice = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    token = int(ids[choice])
    if params.logprobs is None:
        return TokenLogprob(token, math.nan)
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
