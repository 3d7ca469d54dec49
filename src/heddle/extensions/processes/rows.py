"""Rows of numbers as parts of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.processes.children.messages import Part

if TYPE_CHECKING:
    from heddle.step import States


class Rows(Part, frozen=True):
    """Rows of float32."""

    width: int
    content: memoryview

    @classmethod
    def of(cls, rows: States) -> Rows:
        """The rows of an array."""
        return cls(rows.shape[-1], np.ascontiguousarray(rows, np.float32).data.cast("B"))

    @property
    def array(self) -> States:
        """The array again. It cannot be written to."""
        return np.frombuffer(self.content, np.float32).reshape(-1, self.width)
