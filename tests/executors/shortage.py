"""Lets an allocation of a rank fail, in its own process or in that of the test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heddle.extensions.torch import graphs, ops
from heddle.extensions.torch.agreement import Exchanges
from heddle.extensions.torch.states import FixedStates

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = {
    "send": (graphs, "send"),
    "prepare": (FixedStates, "prepare"),
    "multiply": (ops, "multiply"),
    "gather": (Exchanges, "gather"),
    "keep": (FixedStates, "keep"),
}
"""What may find no memory: before, in and after a forward pass."""


class Shortage:
    """Fails once, as a file says, and removes it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def order(self, place: str, rows: range, calls: int) -> None:
        """Fail at `place` after so many calls of it with so many rows; 0: the first one."""
        content = json.dumps({"place": place, "rows": [rows.start, rows.stop], "calls": calls})
        draft = self._file.with_suffix(".draft")
        draft.write_text(content)
        draft.rename(self._file)

    @property
    def is_over(self) -> bool:
        """Whether it has failed, if it was ordered."""
        return not self._file.exists()

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Watch all places. `patch` replaces an attribute."""
        for place, (owner, name) in PLACES.items():
            patch(owner, name, self._failing(place, getattr(owner, name)))

    def _failing(self, place: str, call: Any) -> Any:
        def checked(*args: Any) -> Any:
            if self._file.exists():
                self._check(place, next((len(one) for one in args if torch.is_tensor(one)), 0))
            return call(*args)

        return checked

    def _check(self, place: str, rows: int) -> None:
        order = json.loads(self._file.read_text())
        if order["place"] != place or rows not in range(*order["rows"]):
            return
        if order["calls"]:
            self.order(place, range(*order["rows"]), order["calls"] - 1)
            return
        self._file.unlink()
        raise torch.OutOfMemoryError("CUDA out of memory")


def prepare_child() -> None:
    """Let the process of a rank fail as the test says."""
    Shortage(Path(os.environ["HEDDLE_TEST_SHORTAGE"])).install(setattr)
