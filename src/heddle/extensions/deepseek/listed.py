"""Experts that a table lists for each token id, as in the first layers of DeepSeek-V4.

Roller et al. 2021 (arXiv:2106.04426). The router still makes the weights of the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.experts import MixtureOfExperts, MixtureWeights
    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class KeepListed:
    """The operation that makes all router logits -infinity but those of the token's experts."""

    table: Any
    listed: int

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0]

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        lowering.program.keep_listed(*inputs, self.table.values.astype(np.int32), self.listed, out)

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        (logits,) = inputs
        tokens = [token for chunk in chunks for token in chunk.tokens]
        columns = self.table.values.astype(np.int64).reshape(-1, self.listed)[tokens]
        kept = np.full_like(logits, -np.inf)
        np.put_along_axis(kept, columns, np.take_along_axis(logits, columns, axis=1), axis=1)
        return kept


@dataclass(frozen=True, slots=True)
class ListedWeights(Generic[W]):
    mixture: MixtureWeights[W]
    table: W


@dataclass(frozen=True, slots=True)
class ListedExperts:
    """A mixture of experts whose experts a table lists for each of `vocabulary` token ids."""

    mixture: MixtureOfExperts
    vocabulary: int

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return self.mixture.width

    def load(self, loader: Loader[W], name: str) -> ListedWeights[W]:
        """Claim the tensors under `name`.

        Raises:
            ModelFileError: the table lists an expert twice, or one that there is not.
        """
        spec, label = self.mixture.spec, f"{name}.listed"
        table = loader.vector(label, self.vocabulary * spec.used)
        values = getattr(table, "values", None)
        if isinstance(values, np.ndarray):  # devices that do not serve the model have none
            _check_table(label, values.reshape(-1, spec.used), spec.count)
        return ListedWeights(self.mixture.load(loader, name), table)

    def forward(self, ops: Ops[A, W], weights: ListedWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        own, mixture = weights.mixture, self.mixture
        logits = ops.linear(x, own.router)
        logits = ops.apply(KeepListed(weights.table, mixture.spec.used), logits)
        y = ops.experts(x, logits, own.experts, own.spec)
        if mixture.shared is None:
            return y
        return ops.add(y, mixture.shared.forward(ops, own.shared, x))


def _check_table(label: str, table: Any, experts: int) -> None:
    ordered = np.sort(table, axis=1)
    known = (table >= 0) & (table < experts) & (table == np.floor(table))
    if not known.all() or (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ModelFileError(
            f"tensor {label} must list different experts from 0 to {experts - 1} for each token",
            field=label,
        )
