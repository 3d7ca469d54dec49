"""The contract of executors whose sequences may have adapters (LoRA)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from heddle.weights.low_rank import Change


class Adapter(Protocol):
    """Low-rank changes of a model's matrices, in the memory of its executor."""

    @property
    def bytes(self) -> int:
        """Bytes of the matrices."""
        ...


@runtime_checkable
class AdaptingExecutor(Protocol):
    """An executor whose sequences may have adapters."""

    def make_adapter(self, changes: Mapping[str, Change]) -> Adapter:
        """Make an adapter from changes of matrices, by the names of their products.

        Its memory is freed when neither a caller nor a step refers to it. Any thread may call
        this, also while a step runs.

        Raises:
            UnsupportedModelError: no product with one of the matrices is an operation of its own.
                Names it.
            OutOfMemoryError: there is too little memory.
        """
        ...


def check_adaptable(changes: Iterable[str], known: Container[str]) -> None:
    """Check that a plain product reads each matrix that an adapter changes.

    Raises:
        UnsupportedModelError: none reads one of them. Names it.
    """
    for name in changes:
        if name not in known:
            raise UnsupportedModelError(
                f"adapters that change {name} are not supported: no plain product reads it",
                param=name,
            )
