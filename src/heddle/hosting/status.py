"""States of the models of a registry, and the progress of loads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from heddle.weights.progress import BYTES, Silent

if TYPE_CHECKING:
    from heddle.weights.progress import Progress


class ModelState(StrEnum):
    """The states of a model in a registry. A poisoned one is loaded, but a step has failed."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"
    POISONED = "poisoned"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model of a registry at one moment.

    Attributes:
        name: name in requests.
        source: a path, an alias or a name of the hub.
        state: its state in the registry.
        reason: why its load or a step failed; None if none did.
        progress: the part of the work that is done while it loads, 0 to 1; None if it does not load
            or if the size of the work is not known.
        memory_bytes: bytes of weights, KV cache and tokenizer.
        device: the device and its memory, in words; None if it is not loaded.
        uptime_seconds: seconds since its load ended; None if it is not loaded.
        in_flight: requests that run or wait.
        idle_seconds_left: seconds without a request until it is unloaded; None: it stays.
    """

    name: str
    source: str
    state: ModelState
    reason: str | None
    progress: float | None
    memory_bytes: int
    device: str | None
    uptime_seconds: float | None
    in_flight: int
    idle_seconds_left: float | None


class LoadProgress:
    """Remembers how much of a load is done, and passes all reports on. See `Progress`."""

    def __init__(self, shown: Progress | None = None) -> None:
        self._shown = shown = shown or Silent()
        self.note, self.part, self.finish = shown.note, shown.part, shown.finish
        self._total: int | None = None
        self._done = 0

    @property
    def share(self) -> float | None:
        """The part of the current work that is done, 0 to 1; None if its size is not known."""
        return min(1.0, self._done / self._total) if self._total else None

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = BYTES
    ) -> None:
        self._total, self._done = total, 0
        self._shown.start(label, total, quick=quick, unit=unit)

    def update(self, done: int) -> None:
        self._done = done
        self._shown.update(done)
