"""The inputs of the chain on the device for one row of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.sampling_params import SamplingParams, Stage

    Bits = NDArray[np.uint8]
    Ints = NDArray[np.int64]
    Biases = tuple[Ints, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class SampledRow:
    """The inputs of the chain for one row of logits.

    Attributes:
        params: the request's.
        chain: the samplers that have an effect.
        numbers: `heddle.executors.torch.batch_rows.numbers_of` the parameters.
        index: number of output tokens before this one.
        allowed: a bit for each token, as in a grammar's mask; None: all tokens are allowed.
        biases: tokens, each once, and what to add to their logits, one after the other.
        counts: of each token so far: token, occurrences in the output, and among the last
            `repeat_last_n` tokens (3, n). Empty without penalties.
        repeats: tokens that DRY penalises, and their penalties. Empty without DRY.
    """

    params: SamplingParams
    chain: tuple[Stage, ...]
    numbers: NDArray[np.float64]
    index: int
    allowed: Bits | None
    biases: Sequence[Biases]
    counts: Ints
    repeats: Biases

    def uniform(self, stream: int = 0) -> float:
        """The row's random number in [0, 1); see `heddle.testing.philox.uniform`."""
        assert self.params.seed is not None, "the engine draws a seed before sampling"
        return _native.uniform(self.params.seed % 2**64, self.index, stream)
