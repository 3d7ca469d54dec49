"""The gated short convolution: a mixer that sees only the last few tokens.

Liquid AI 2025 (LFM2, arXiv:2511.23404). One matrix makes an input gate, an output gate and values.
The gated values pass a convolution without activation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.models.fixed_state import fixed_state

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops, StatePlace
    from heddle.state import Fixed, StateKind

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class ShortConvWeights(Generic[W]):
    """`inputs` make the input gates, the output gates, then the values."""

    inputs: W
    filters: W
    output: W


@dataclass(frozen=True, slots=True)
class ShortConv:
    """See the module.

    Attributes:
        width: width of the hidden state, and of gates and values.
        taps: positions that the convolution sees, the token itself included.
    """

    width: int
    taps: int

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See `heddle.models.blocks.Mixer`."""
        assert causal, "a recurrence sees no later tokens"
        return (self._place(0)[0],)

    def _place(self, layer: int) -> tuple[Fixed, StatePlace]:
        """The state, all of it the last inputs of the convolution."""
        kind, (place,) = fixed_state(layer, [(self.taps - 1) * self.width])
        return kind, place

    def load(self, loader: Loader[W], name: str) -> ShortConvWeights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name = f"{name}.mixer"
        return ShortConvWeights(
            inputs=loader.linear(f"{name}.inputs", 3 * self.width, self.width),
            filters=loader.filters(f"{name}.conv", [self.width], self.taps)[0],
            output=loader.linear(f"{name}.output", self.width, self.width),
        )

    def forward(
        self, ops: Ops[A, W], weights: ShortConvWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        width, mixed = self.width, ops.linear(x, weights.inputs)
        gate, out_gate, values = (ops.take_columns(mixed, i * width, width) for i in range(3))
        _, place = self._place(layer)
        gated = ops.gated(gate, values, "identity")
        y = ops.causal_conv(gated, weights.filters, place, "identity")
        return ops.linear(ops.gated(out_gate, y, "identity"), weights.output)
