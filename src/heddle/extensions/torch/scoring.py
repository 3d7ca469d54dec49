"""Log probabilities of prompt tokens: on the device where it samples, else by native samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from heddle import _native
from heddle.executors.failures import non_finite
from heddle.extensions.torch.candidates import Candidates
from heddle.extensions.torch.reports import measured, padded, raw_report
from heddle.outputs import PromptLogprob
from heddle.step import Failed, Scored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.step import Chunk

    Score = Callable[[torch.Tensor, Sequence["Wanted"]], list[PromptLogprob | None]]

_ISA = _native.isa_levels()[0]


class Wanted(NamedTuple):
    """A token to score, and how many of the likeliest tokens to report beside it."""

    target: int
    top: int


def score_on_host(logits: torch.Tensor, wanted: Sequence[Wanted]) -> list[PromptLogprob | None]:
    """Score a token with each row of logits (rows, vocabulary). None: a logit is not finite."""
    return [_native_score(*pair) for pair in zip(logits.cpu().numpy(), wanted, strict=True)]


def _native_score(logits: NDArray[np.float32], wanted: Wanted) -> PromptLogprob | None:
    params = _native.SamplerParams({"temperature": 0.0}, [])
    params.logprobs = wanted.top
    sampler, target = _native.Sampler(params), wanted.target
    # A sampler that may pick nothing else reports the target's logprob, as in a step's result.
    sampler.edit(((1 << target).to_bytes(target // 8 + 1, "little"), b""))
    token, logprob, top = sampler.pick(_ISA, logits)
    above = int(np.count_nonzero(logits > logits[target]))
    rank = 1 + above + int(np.count_nonzero(logits[:target] == logits[target]))
    return PromptLogprob(target, logprob, rank, tuple(top)) if token == target else None


def score_on_device(logits: torch.Tensor, wanted: Sequence[Wanted]) -> list[PromptLogprob | None]:
    """The same, computed on the device: only log probabilities come to the host."""
    columns = torch.arange(logits.shape[-1], device=logits.device)
    targets = torch.tensor([[one.target] for one in wanted], device=logits.device)
    own = logits.gather(-1, targets)
    better = (logits > own) | ((logits == own) & (columns < targets))
    count = min(max(one.top for one in wanted), logits.shape[-1])
    measures = [
        logits.isfinite().all(-1, keepdim=True).double(),
        better.sum(-1, keepdim=True).double(),
        measured(Candidates(padded(logits)), targets, count),
    ]
    return [
        _device_score(*pair) for pair in zip(torch.cat(measures, -1).tolist(), wanted, strict=True)
    ]


def _device_score(values: Sequence[float], wanted: Wanted) -> PromptLogprob | None:
    is_finite, better = values[:2]
    if not is_finite:
        return None
    logprob, top = raw_report(values[2:], wanted.top)
    return PromptLogprob(wanted.target, logprob, 1 + int(better), tuple(top))


class Scorer:
    """Collects log probabilities of a chunk's targets, in their order."""

    def __init__(self, chunk: Chunk) -> None:
        assert chunk.score is not None, "the chunk is to be scored"
        self._chunk = chunk
        self._wanted = iter([Wanted(target, chunk.score.top) for target in chunk.score.targets])
        self._scores: list[PromptLogprob] = []
        self._bad_row: NDArray[np.float32] | None = None  # the last

    def next(self) -> Wanted:
        """The target to score with the next row of logits."""
        return next(self._wanted)

    def add(self, score: PromptLogprob | None, logits: torch.Tensor) -> None:
        """Add the score of a row of logits (vocabulary,); None: they are not finite."""
        if score is None:
            self._bad_row = logits.cpu().numpy()
        else:
            self._scores.append(score)

    def result(self) -> Scored | Failed:
        """The scores, once all rows were added."""
        if self._bad_row is not None:
            return Failed(self._chunk.slot, non_finite(self._chunk, row=self._bad_row))
        return Scored(self._chunk.slot, tuple(self._scores))
