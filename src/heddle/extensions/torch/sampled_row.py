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
    LateBiases = tuple[Ints, NDArray[np.float32], Ints]


@dataclass(frozen=True, slots=True)
class SampledRow:
    """The inputs of the chain for one row of logits.

    The token before may be one that the device has sampled and the host does not know yet. Then the
    host says what follows from each token that it may be, and the device chooses.

    Attributes:
        params: the request's.
        chain: the samplers that have an effect.
        numbers: `heddle.extensions.torch.batch_rows.numbers_of` the parameters.
        index: number of output tokens before this one.
        unknown_of: the slot whose last token the host does not know; None: the host knows it.
        allowed: a bit for each token, as in a grammar's mask; None: all tokens are allowed.
        biases: tokens, each once, and what to add to their logits, one after the other.
        late_bans: tokens that are not allowed, and the unknown tokens after which (2, n).
        counts: of each token so far: token, occurrences in the output, and among the last
            `repeat_last_n` tokens (3, n). `UNKNOWN` is the unknown token: its numbers are added to
            those of an equal token. Empty without penalties.
        repeats: tokens that DRY penalises, their penalties, and the unknown tokens after which;
            `UNKNOWN`: always. After any token each is penalised once. Empty without DRY.
    """

    params: SamplingParams
    chain: tuple[Stage, ...]
    numbers: NDArray[np.float64]
    index: int
    unknown_of: int | None
    allowed: Bits | None
    late_bans: Ints
    biases: Sequence[Biases]
    counts: Ints
    repeats: LateBiases

    def uniform(self, stream: int = 0) -> float:
        """The row's random number in [0, 1); see `heddle.extensions.reference.philox.uniform`."""
        assert self.params.seed is not None, "the engine draws a seed before sampling"
        return _native.uniform(self.params.seed % 2**64, self.index, stream)
