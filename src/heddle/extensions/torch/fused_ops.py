"""The joined operations that `fusion.py` makes. A device may have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from heddle.models.ops import AttentionSpec, RopeSpec

A = TypeVar("A")


class FusedOps(Protocol[A]):
    """Operations that have the bits of the operations of `Ops` that they join."""

    def add_norm(self, x: A, y: A, w: Any, eps: float, readers: tuple[Any, ...]) -> tuple[A, A]:
        """x + y, and `Ops.norm` of it, which these matrices multiply later."""
        ...

    def gated_for(self, gate: A, up: A, activation: str, readers: tuple[Any, ...]) -> A:
        """`Ops.gated`, whose result these matrices multiply later."""
        ...

    def linear_each(self, x: A, weights: tuple[Any, ...]) -> tuple[A, ...]:
        """`Ops.linear` of x with each of these matrices, which have an equal `joint`."""
        ...

    def roped_attend(
        self,
        q: A,
        k: A,
        v: A,
        positions: A,
        layer: int,
        spec: AttentionSpec,
        sinks: Any | None,
        rope: RopeSpec,
    ) -> A:
        """Attend as `Ops.attend` does, with q and k rotated by `Ops.rope`."""
        ...
