"""Counts the bytes of a rank's weights before any is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.torch.division.claims import WHOLE, Cut

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.mix import Mix


class ShareBytes:
    """Counts what it is asked to load; see `heddle.extensions.torch.division.claims.PartLoader`.

    Attributes:
        bytes: of the tensors so far, each once.
    """

    def __init__(self, checkpoint: Checkpoint, mix: Mix) -> None:
        self._checkpoint = checkpoint
        self._mix = mix
        self._of_name: dict[str, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self._of_name.values())

    def linear(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> None:
        self._count(name, shape, cut)

    def experts(self, name: str, shape: tuple[int, int, int], cut: Cut = WHOLE) -> None:
        self._count(name, shape, cut)

    def embedding(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> None:
        self._count(name, shape, cut)

    def vector(self, name: str, width: int, cut: Cut = WHOLE) -> None:
        del cut
        self._of_name[name] = 4 * width

    def filters(self, name: str, shape: tuple[int, int], channels: range, cut: Cut = WHOLE) -> None:
        del channels, cut
        self._of_name[name] = 4 * shape[0] * shape[1]

    def filled(self, width: int, value: float, cut: Cut = WHOLE) -> None:
        """Count nothing: the tensor is small and not in the files."""

    def _count(self, name: str, shape: tuple[int, ...], cut: Cut) -> None:
        tensor = self._checkpoint.tensors[f"{name}.weight"]
        kind = self._mix.type_of(tensor)
        stack = 1 if len(shape) == 2 else shape[0] if cut.stack is None else len(cut.stack)
        rows = shape[-2] if cut.rows is None else len(cut.rows)
        columns = shape[-1] if cut.columns is None else len(cut.columns)
        blocks = -(-columns // kind.block_elements)
        self._of_name[name] = stack * rows * blocks * kind.block_bytes
