"""The two parts of a layer of RWKV-7: time mixing, which has the recurrence, and channel mixing.

Peng et al. 2025 (arXiv:2503.14456, section 4); BlinkDL/RWKV-LM, `RWKV-v7/rwkv_v7_demo.py`. Each
part mixes a token with the token before it, in shares of its own for each use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops, StatePlace

A = TypeVar("A")
W = TypeVar("W")

SHIFTS = ("r", "w", "k", "v", "a", "g")
"""What the mixes of time mixing are for: receptance, decay, keys, values, rates, gates."""

SLOWEST = -math.exp(-0.5)
"""The logarithm of a decay is this times the sigmoid of a number of the token."""


@dataclass(frozen=True, slots=True)
class TimeMixWeights(Generic[W]):
    """Weights of time mixing.

    `decay`, `rate`, `gate` and `values` are two matrices each: to a narrow vector, and from it.
    `values` is None in the first layer, whose values the others mix with their own. `vectors` are
    those of :meth:`heddle.models.ops.Ops.rwkv_attend`. `slowest` is the vector of `SLOWEST`.
    """

    shares: W
    receptance: W
    key: W
    value: W
    decay: tuple[W, W]
    rate: tuple[W, W]
    gate: tuple[W, W]
    values: tuple[W, W] | None
    vectors: tuple[W, ...]
    slowest: W
    output: W


@dataclass(frozen=True, slots=True)
class Ranks:
    """Widths of the narrow vectors."""

    decay: int
    rate: int
    gate: int
    value: int


@dataclass(frozen=True, slots=True)
class TimeMix:
    """See the module.

    Attributes:
        width: width of the hidden state.
        ranks: widths of the narrow vectors.
        norm_eps: epsilon of the norm of a head's result.
    """

    width: int
    ranks: Ranks
    norm_eps: float

    def load(self, loader: Loader[W], name: str, *, first: bool) -> TimeMixWeights[W]:
        """Claim the tensors under `name`. `first`: of the first layer."""
        width = self.width

        def matrix(part: str) -> W:
            return loader.linear(f"{name}.{part}", width, width)

        def narrow(part: str, rank: int) -> tuple[W, W]:
            return (
                loader.linear(f"{name}.{part}_in", rank, width),
                loader.linear(f"{name}.{part}_out", width, rank),
            )

        names = ("removal", "replacement", "bonus", "result_norm", "result_norm.bias")
        ranks = self.ranks
        return TimeMixWeights(
            shares=loader.vector(f"{name}.shares", len(SHIFTS) * width),
            receptance=matrix("receptance"),
            key=matrix("key"),
            value=matrix("value"),
            decay=narrow("decay", ranks.decay),
            rate=narrow("rate", ranks.rate),
            gate=narrow("gate", ranks.gate),
            values=None if first else narrow("values", ranks.value),
            vectors=tuple(loader.vector(f"{name}.{one}", width) for one in names),
            slowest=loader.filled(1, SLOWEST),
            output=matrix("output"),
        )

    def forward(
        self,
        ops: Ops[A, W],
        weights: TimeMixWeights[W],
        x: A,
        first_values: A | None,
        places: tuple[StatePlace, StatePlace],
    ) -> tuple[A, A]:
        """Map normed x (T, width) to (T, width).

        `first_values` are the values of the first layer, which this returns, too; None: this is the
        first layer.
        """
        shifted, matrices = places
        mixes = ops.token_shift(x, weights.shares, len(SHIFTS), shifted)
        of = {
            one: ops.take_columns(mixes, index * self.width, self.width)
            for index, one in enumerate(SHIFTS)
        }
        r, k = ops.linear(of["r"], weights.receptance), ops.linear(of["k"], weights.key)
        values = ops.linear(of["v"], weights.value)
        if first_values is None or weights.values is None:
            first_values = v = values
        else:
            share = _through(ops, of["v"], weights.values)
            own = ops.take_columns(values, 0, self.width)
            v = ops.add(own, ops.gated(share, _difference(ops, first_values, values), "sigmoid"))
        w = _through(ops, of["w"], weights.decay, "tanh")
        w = ops.decay(ops.activate(w, "sigmoid"), weights.slowest)
        rate = ops.activate(_through(ops, of["a"], weights.rate), "sigmoid")
        y = ops.rwkv_attend((r, k, v, w, rate), weights.vectors, matrices, self.norm_eps)
        gate = _through(ops, of["g"], weights.gate, "sigmoid")
        return ops.linear(ops.gated(gate, y, "identity"), weights.output), first_values


def _through(ops: Ops[A, W], x: A, matrices: tuple[W, W], activation: str = "") -> A:
    """x through a narrow vector."""
    narrow = ops.linear(x, matrices[0])
    narrow = ops.activate(narrow, activation) if activation else narrow
    return ops.linear(narrow, matrices[1])


def _difference(ops: Ops[A, W], x: A, y: A) -> A:
    """x - y. No later operation may read y."""
    return ops.add(x, ops.scale(y, -1.0))


@dataclass(frozen=True, slots=True)
class ChannelMixWeights(Generic[W]):
    shares: W
    key: W
    value: W


@dataclass(frozen=True, slots=True)
class ChannelMix:
    """A feed-forward layer with squared ReLU, without gates."""

    width: int
    hidden: int

    def load(self, loader: Loader[W], name: str) -> ChannelMixWeights[W]:
        """Claim the tensors under `name`."""
        return ChannelMixWeights(
            shares=loader.vector(f"{name}.shares", self.width),
            key=loader.linear(f"{name}.key", self.hidden, self.width),
            value=loader.linear(f"{name}.value", self.width, self.hidden),
        )

    def forward(self, ops: Ops[A, W], weights: ChannelMixWeights[W], x: A, place: StatePlace) -> A:
        """Map normed x (T, width) to (T, width)."""
        mixed = ops.token_shift(x, weights.shares, 1, place)
        return ops.linear(
            ops.activate(ops.linear(mixed, weights.key), "squared_relu"), weights.value
        )
