"""Log probabilities of prompt tokens, from rows of logits that come to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.executors.failures import non_finite
from heddle.outputs import PromptLogprob
from heddle.step import Failed, Scored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.step import Chunk

    Logits = NDArray[np.float32]

_ISA = _native.isa_levels()[0]


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
