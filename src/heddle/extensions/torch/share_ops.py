"""The operations that a divided forward pass has beside those of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.ops import ExpertSpec, ExpertWeights

A = TypeVar("A")


class ShareOps(Protocol[A]):
    """The operations of a rank's graph that no model writes. Arrays are as in `Ops`."""

    def sum_ranks(self, x: A) -> A:
        """The sum of x over all ranks, added in the order of the ranks."""
        ...

    def gather_ranks(self, x: A, widths: Sequence[int], order: Sequence[int]) -> A:
        """The columns of all ranks; see :class:`heddle.extensions.torch.made_nodes.GatherRanks`."""
        ...

    def pick_columns(self, x: A, columns: Sequence[int]) -> A:
        """x[:, columns]."""
        ...

    def embed_share(self, table: Any, tokens: A, first: int, rows: int) -> A:
        """Rows of a table that begins with token `first`; zeros for tokens that it lacks.

        The tables of all ranks have `rows` tokens. Others read the first row.
        """
        ...

    def experts_share(
        self, x: A, logits: A, weights: ExpertWeights[Any], spec: ExpertSpec, first: int
    ) -> A:
        """Compute `Ops.experts` with the weights of the experts from `first` on, and only these."""
        ...
