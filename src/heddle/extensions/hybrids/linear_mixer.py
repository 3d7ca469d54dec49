"""The common base of linear attention mixers: the state, and short convolutions before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.models.fixed_state import fixed_state

if TYPE_CHECKING:
    from heddle.models.ops import LinearAttentionSpec, StatePlace
    from heddle.state import Fixed, StateKind


@dataclass(frozen=True, slots=True)
class LinearMixer(ABC):
    """A mixer whose queries, keys and values pass a short convolution each.

    Attributes:
        width: width of the hidden state.
        spec: heads of queries, keys and values.
        taps: positions that the convolutions see, the token itself included.
        norm_eps: epsilon of the norm of results.
    """

    width: int
    spec: LinearAttentionSpec
    taps: int
    norm_eps: float

    @property
    @abstractmethod
    def streams(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values, in the order of their convolutions."""

    def places(self, layer: int) -> tuple[Fixed, list[StatePlace]]:
        """The state, and the places of the three convolutions and of the matrices."""
        inputs = ((self.taps - 1) * stream for stream in self.streams)
        return fixed_state(layer, [*inputs, self.spec.state_count])

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See `heddle.models.blocks.Mixer`."""
        assert causal, "a recurrence sees no later tokens"
        return (self.places(0)[0],)
