"""The Mamba mixer: a state of each channel, in which each element decays by a factor of its own.

Gu & Dao 2023 (arXiv:2312.00752). One matrix makes values (x) and gates. The values pass a short
convolution, and then make step sizes, keys (B) and queries (C). FalconMamba and Jamba norm these
three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.models.fixed_state import fixed_state

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops, StatePlace
    from heddle.state import Fixed, StateKind
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_NORMS = ("step_norm", "key_norm", "query_norm")


@dataclass(frozen=True, slots=True)
class MambaWeights(Generic[W]):
    """`inputs` make values and gates, `scan_inputs` a latent of step sizes, keys and queries.

    `step` makes step sizes from their latent. `norms` are of the three; empty: they have none.
    """

    inputs: W
    filters: W
    scan_inputs: W
    norms: tuple[W, ...]
    step: W
    step_bias: W
    rates: W
    skip: W
    output: W


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms of step sizes, keys and queries; without weights unless they are `stored`."""

    eps: float
    stored: bool


@dataclass(frozen=True, slots=True)
class Mamba:
    """See the module.

    Attributes:
        width: width of the hidden state.
        channels: number of channels.
        states: elements of the state of a channel, and so of keys and queries.
        step_rank: elements of the latent of step sizes.
        taps: positions that the convolution sees, the token itself included.
        norms: norms before the scan; None: there are none.
    """

    width: int
    channels: int
    states: int
    step_rank: int
    taps: int
    norms: Norms | None

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Elements of the latent of step sizes, of keys and of queries."""
        return self.step_rank, self.states, self.states

    def places(self, layer: int) -> tuple[Fixed, list[StatePlace]]:
        """The state, and the places of the convolution and of the scan."""
        return fixed_state(layer, [(self.taps - 1) * self.channels, self.states * self.channels])

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See `heddle.models.blocks.Mixer`."""
        assert causal, "a recurrence sees no later tokens"
        return (self.places(0)[0],)

    def load(self, loader: Loader[W], name: str) -> MambaWeights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name, width, channels = f"{name}.mixer", self.width, self.channels
        (filters,) = loader.filters(f"{name}.conv", (channels,), self.taps)
        norms: tuple[W, ...] = ()
        if self.norms is not None:
            norms = tuple(
                loader.vector(f"{name}.{part}", size) if self.norms.stored else loader.filled(size)
                for part, size in zip(_NORMS, self._parts, strict=True)
            )
        return MambaWeights(
            inputs=loader.linear(f"{name}.inputs", 2 * channels, width),
            filters=filters,
            scan_inputs=loader.linear(f"{name}.scan_inputs", sum(self._parts), channels),
            norms=norms,
            step=loader.linear(f"{name}.step", channels, self.step_rank),
            step_bias=loader.vector(f"{name}.step_bias", channels),
            rates=loader.vector(f"{name}.decay_rates", channels * self.states),
            skip=loader.vector(f"{name}.skip", channels),
            output=loader.linear(f"{name}.output", width, channels),
        )

    def forward(
        self, ops: Ops[A, W], weights: MambaWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        _, (conv, scan) = self.places(layer)
        mixed = ops.linear(x, weights.inputs)
        values = ops.take_columns(mixed, 0, self.channels)
        gate = ops.take_columns(mixed, self.channels, self.channels)
        values = ops.causal_conv(values, weights.filters, conv, "silu")
        step, k, q = self._scan_inputs(ops, weights, values)
        step = ops.step_size(ops.linear(step, weights.step), weights.step_bias, 0.0, math.inf)
        y = ops.selective_scan(q, k, values, step, weights.rates, weights.skip, scan)
        return ops.linear(ops.gated(gate, y, "silu"), weights.output)

    def _scan_inputs(self, ops: Ops[A, W], weights: MambaWeights[W], values: A) -> list[A]:
        """The latent of step sizes, keys and queries."""
        mixed, found, first = ops.linear(values, weights.scan_inputs), [], 0
        for size in self._parts:
            found.append(ops.take_columns(mixed, first, size))
            first += size
        if self.norms is None:
            return found
        eps = self.norms.eps
        return [ops.norm(one, w, eps) for one, w in zip(found, weights.norms, strict=True)]


def mamba(read: Hyperparameters, width: int, norms: Norms | None) -> Mamba:
    """The mixer with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or out of range.
    """
    taps = read.integer("state.taps", 4)
    if taps < 2:
        read.fail("state.taps", f"is {taps}; a convolution of at least 2 positions is supported")
    return Mamba(
        width,
        read.integer("state.inner"),
        read.integer("state.key_dim", 16),
        read.integer("state.step_rank"),
        taps,
        norms,
    )
