"""Makes native samplers from a request's parameters and token rules."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from heddle import _native
from heddle.executors.cpu.batch import ints
from heddle.executors.failures import non_finite, nothing_allowed
from heddle.sampling_params import PARAMETERS
from heddle.token_rules import NO_RULES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from heddle.errors import HeddleError
    from heddle.sampling_params import SamplingParams
    from heddle.step import Binding, Chunk
    from heddle.token_rules import TokenPieces, TokenRules, TokenSequences

    Row = npt.NDArray[np.float32]

_NUMBERS = tuple(row.name for row in PARAMETERS if row.native)

_NOTHING_LEFT = -2
"""The value that a sampler returns instead of a token if all tokens are forbidden."""

_LEAST_TEMPERATURE = 1e-30
"""At this temperature and at lower ones, only the best token is left."""


def bound_sampler(binding: Binding, params: SamplingParams) -> _native.Sampler:
    """The sampler for a binding's sequence. It has observed all tokens of the sequence."""
    sampler = make_sampler(params, binding.rules)
    sampler.observe_prompt(ints(binding.prompt))
    sampler.observe_output(ints(binding.output))
    if binding.mu is not None:
        sampler.mu = binding.mu
    return sampler


def make_sampler(params: SamplingParams, rules: TokenRules = NO_RULES) -> _native.Sampler:
    """The native sampler for `params`, whose seed must already be drawn.

    Raises:
        ValueError: the seed is missing.
    """
    if params.seed is None:
        raise ValueError("params.seed must be drawn before a sampler is made")
    numbers = {name: getattr(params, name) for name in _NUMBERS}
    if params.temperature > 0:  # so that it stays above 0 as float32
        numbers["temperature"] = max(params.temperature, _LEAST_TEMPERATURE)
    native = _native.SamplerParams(numbers, [stage.value for stage in params.samplers])
    native.bias = {id: bias for id, bias in params.logit_bias.items() if math.isfinite(bias)}
    native.bad_sequences = rules.bad_sequences
    native.end_tokens = rules.end_tokens
    native.forbidden = rules.forbidden
    if rules.breakers is not None:
        native.dry_breakers = _breakers(rules.breakers)
    if rules.pieces is not None:
        native.pieces = _pieces(rules.pieces)
    for rule in rules.extensions:
        rule.apply_to(native)
    native.seed = params.seed % 2**64
    native.logprobs = -1 if params.logprobs is None else params.logprobs
    native.reports_chain = params.post_sampling_probs
    return _native.Sampler(native)


def pick_failure(
    token: int, chunk: Chunk, right: int, row: Callable[[], Row | None]
) -> HeddleError | None:
    """The error for a sampler's negative result after right guesses; None if it is a token.

    `row` gets the logits of the pick; None: they are not kept.
    """
    if token >= 0:
        return None
    if token == _NOTHING_LEFT:
        return nothing_allowed(chunk, right)
    return non_finite(chunk, right, row())


@lru_cache(maxsize=2)
def _pieces(pieces: TokenPieces) -> _native.TokenPieces:
    """The native form, made once for all requests of a model."""
    return _native.TokenPieces(pieces.texts, pieces.ends)


@lru_cache(maxsize=8)
def _breakers(breakers: TokenSequences) -> _native.Breakers:
    """The native form, made once for all requests with the same breakers (perhaps thousands)."""
    return _native.Breakers(breakers.sequences)
