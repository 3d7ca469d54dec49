"""Samplers of slots on the host: the CPU's native samplers, on rows of logits from the device."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.executors.cpu.grammar_masks import GrammarMasks
from heddle.executors.cpu.samplers import bound_sampler, make_sampler, pick_failure
from heddle.executors.failures import non_finite, sampler_failed
from heddle.outputs import PromptLogprob
from heddle.sampling_params import SamplingParams
from heddle.step import Deferred, Failed, Sampled, Scored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.errors import HeddleError
    from heddle.step import Binding, Chunk

    Logits = NDArray[np.float32]

_log = logging.getLogger(__name__)

_ISA = _native.isa_levels()[0]


class _SlotSampler:
    """The sampler of a slot, and the masks for its next picks."""

    def __init__(self, native: _native.Sampler) -> None:
        self.native = native
        self._masks: tuple[bytes, ...] = ()

    def allow_only(self, *masks: bytes) -> None:
        """See `heddle.executors.cpu.grammar_masks.MaskedSampler`."""
        self._masks = masks

    def may_pick(self, guesses: int) -> bool:
        """Whether there is a mask for the pick after so many guesses, if masks are needed."""
        return not self._masks or guesses < len(self._masks)

    def pick(self, logits: Logits, guesses: int) -> _native.Pick:
        """The token after so many guesses, with its logprob and the likeliest tokens."""
        self.native.allow_only(*self._masks[guesses : guesses + 1])
        return self.native.pick(_ISA, logits)


class Samplers:
    """The samplers and grammars of all slots."""

    def __init__(self) -> None:
        self._samplers: dict[int, _SlotSampler] = {}
        self._failures: dict[int, HeddleError] = {}
        self._masks = GrammarMasks()

    def bind(self, binding: Binding, params: SamplingParams) -> None:
        """Give the binding's slot its sampler. If it cannot be made, the slot's samples fail."""
        self._failures.pop(binding.slot, None)
        try:
            native = bound_sampler(binding, params)
        except Exception as cause:
            _log.exception("a sampler failed")
            self._failures[binding.slot] = sampler_failed(cause)
            native = make_sampler(SamplingParams(temperature=0, seed=0))
        self._samplers[binding.slot] = _SlotSampler(native)
        self._masks.bind(binding)

    def begin_masks(self, chunks: Sequence[Chunk]) -> Callable[[], None] | None:
        """Begin to make masks; see `GrammarMasks.begin_masks`."""
        return self._masks.begin_masks(chunks, self._samplers)

    def sample(self, chunk: Chunk, rows: Sequence[Logits]) -> list[Sampled | Failed | Deferred]:
        """The outcomes of a chunk. `rows` has the logits of its last known token and guesses."""
        slot, sampler = chunk.slot, self._samplers[chunk.slot]
        late = self._masks.late(slot)
        if late is not None:
            return [Deferred(slot, late)]
        failure = self._failures.get(slot) or self._masks.failure(slot)
        if failure is not None:
            return [Failed(slot, failure)]
        outcomes: list[Sampled | Failed | Deferred] = []
        for right, logits in enumerate(rows):
            if not sampler.may_pick(right):
                break
            outcomes.append(_outcome(chunk, sampler, logits, right))
            guess = chunk.tokens[chunk.known + right] if right < chunk.guesses else None
            last = outcomes[-1]
            if not isinstance(last, Sampled) or last.token != guess:
                break
        tokens = [one.token for one in outcomes if isinstance(one, Sampled)]
        if len(tokens) == len(outcomes):
            self._masks.observe(slot, tokens)
        return outcomes


def _outcome(chunk: Chunk, sampler: _SlotSampler, logits: Logits, right: int) -> Sampled | Failed:
    token, logprob, top = sampler.pick(logits, right)
    failure = pick_failure(token, chunk, right)
    if failure is not None:
        return Failed(chunk.slot, failure)
    native = sampler.native
    wanted = logprob if native.logprobs >= 0 else math.nan
    return Sampled(chunk.slot, token, wanted, tuple(top), native.mu)


class Scorer:
    """Collects log probabilities of a chunk's targets, one row of logits after the other."""

    def __init__(self, chunk: Chunk) -> None:
        assert chunk.score is not None, "the chunk is to be scored"
        self._chunk = chunk
        self._targets = iter(chunk.score.targets)
        self._scores: list[PromptLogprob] = []
        self._is_finite = True
        params = _native.SamplerParams({"temperature": 0.0}, [])
        params.logprobs = chunk.score.top
        self._sampler = _native.Sampler(params)

    def add(self, logits: Logits) -> None:
        """Score the next target with its row of logits (vocabulary,)."""
        target = next(self._targets)
        # A sampler that may pick nothing else reports the target's logprob, as in a step's result.
        self._sampler.allow_only((1 << target).to_bytes(target // 8 + 1, "little"))
        token, logprob, top = self._sampler.pick(_ISA, logits)
        self._is_finite = self._is_finite and token == target
        above = int(np.count_nonzero(logits > logits[target]))
        rank = 1 + above + int(np.count_nonzero(logits[:target] == logits[target]))
        self._scores.append(PromptLogprob(target, logprob, rank, tuple(top)))

    def result(self) -> Scored | Failed:
        """The scores, once all rows were added."""
        if not self._is_finite:
            return Failed(self._chunk.slot, non_finite(self._chunk))
        return Scored(self._chunk.slot, tuple(self._scores))
