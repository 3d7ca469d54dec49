"""Which scenes the eyes compute at once, and the rows of looks that still lack some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.pictures import Look, Scene
    from heddle.step import States

MOST_SCENES = 64
"""Most scenes of a pass."""


class ScenePasses:
    """The passes of an encoder over the scenes of looks.

    Attributes:
        scenes: those of the pass in the works; empty: there is none.
    """

    def __init__(self, most: int) -> None:
        """A pass has up to `most` patches."""
        self._most = most
        self._batch: list[tuple[Look, Scene]] = []
        self._made: dict[Look, list[States]] = {}  # rows of looks that lack some
        self.scenes: list[Scene] = []

    def keep(self, wanted: Sequence[Look]) -> None:
        """Forget what nobody wants any more."""
        self._made = {look: rows for look, rows in self._made.items() if look in wanted}
        if not any(look in wanted for look, _ in self._batch):
            self._choose([])

    def begin(self, wanted: Sequence[Look]) -> bool:
        """Choose scenes for the next pass. Returns whether there are any.

        Raises:
            ValueError: a scene fits no pass.
        """
        self._choose(self._chosen(wanted))
        return bool(self._batch)

    def take(self, rows: Sequence[States]) -> None:
        """Take the rows of each scene of the pass. Looks of which all are done get theirs."""
        for (look, _), own in zip(self._batch, rows, strict=True):
            made = self._made.setdefault(look, [])
            made.append(own)
            if len(made) == len(look.scenes):
                look.take(np.concatenate(self._made.pop(look)))
        self._choose([])

    def forget(self) -> None:
        """Give up all looks."""
        self._made = {}
        self._choose([])

    def _choose(self, batch: list[tuple[Look, Scene]]) -> None:
        self._batch, self.scenes = batch, [scene for _, scene in batch]

    def _chosen(self, wanted: Sequence[Look]) -> list[tuple[Look, Scene]]:
        """The first scenes without rows that fit a pass."""
        chosen: list[tuple[Look, Scene]] = []
        room = self._most
        for look in wanted:
            for scene in look.scenes[len(self._made.get(look, ())) :]:
                if len(scene) > self._most:
                    raise ValueError(f"{len(scene)} patches are more than {self._most}")
                if len(scene) > room or len(chosen) == MOST_SCENES:
                    return chosen
                chosen.append((look, scene))
                room -= len(scene)
        return chosen
