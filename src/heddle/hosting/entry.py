"""The entry of one model in a registry."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import (
    ModelLoadedError,
    ModelNotFoundError,
    ModelUnavailableError,
    ModelUnloadedError,
)
from heddle.hosting.status import ModelState, ModelStatus

if TYPE_CHECKING:
    from concurrent.futures import Future

    from heddle.config import EngineConfig
    from heddle.engine.engine import Engine
    from heddle.engine.health import Poison
    from heddle.errors import HeddleError
    from heddle.hosting.status import LoadProgress


@dataclass(slots=True, eq=False, weakref_slot=True)
class Entry:
    """The registry's record of a model. The lock of its registry guards it.

    Attributes:
        name: name in requests.
        source: the name from the user: a path, an alias or a name of the hub.
        config: settings of its engine.
        known: the model stays in the list after it is unloaded.
        found: it was found in `models_dir`.
        keep_alive: seconds without a request after which it is unloaded; 0: never.
        state: see the docstring of `hosting/registry.py`.
        engine: while it is loaded or unloading.
        load: the load in progress, or the last one.
        progress: of the load in progress.
        reason: why the last load failed.
        loaded_at, used_at: when it was loaded, and when a request last named it, in seconds of
            `time.monotonic`.
        recoveries: loads after poison since the model last ran for STEADY seconds.
    """

    name: str
    source: str
    config: EngineConfig
    known: bool = False
    found: bool = False
    keep_alive: float = 0.0
    state: ModelState = ModelState.UNLOADED
    engine: Engine | None = None
    load: Future[Engine] | None = None
    progress: LoadProgress | None = None
    reason: str | None = None
    loaded_at: float = 0.0
    used_at: float = 0.0
    recoveries: int = 0

    @property
    def in_flight(self) -> int:
        """Requests that run or wait."""
        engine = self.engine  # another thread may unload it meanwhile
        if engine is None:
            return 0
        now = engine.snapshot()
        return now.running + now.queue_depth

    @property
    def poison(self) -> Poison | None:
        """The failure that poisoned it; None if it can serve requests or is not loaded."""
        engine = self.engine
        return None if engine is None else engine.health.poison

    @property
    def _idle_seconds_left(self) -> float | None:
        if not self.keep_alive:
            return None
        used_at = time.monotonic() if self.in_flight else self.used_at
        return max(0.0, used_at + self.keep_alive - time.monotonic())

    def status(self) -> ModelStatus:
        engine, loading = self.engine, self.state is ModelState.LOADING
        loaded = self.state is ModelState.LOADED
        poison = self.poison
        return ModelStatus(
            name=self.name,
            source=self.source,
            state=ModelState.POISONED if poison and loaded else self.state,
            reason=poison.reason if poison else self.reason,
            progress=self.progress.share if loading and self.progress else None,
            memory_bytes=engine.model.executor.held_bytes if engine and not poison else 0,
            device=engine.model.executor.summary if engine else None,
            uptime_seconds=time.monotonic() - self.loaded_at if engine else None,
            in_flight=self.in_flight,
            idle_seconds_left=self._idle_seconds_left if loaded else None,
        )

    def why_not_served(self, *, autoload: bool) -> HeddleError:
        """The error for a request to a model that is not loaded."""
        match self.state:
            case ModelState.LOADING | ModelState.UNLOADED if autoload:
                return ModelUnloadedError(
                    f"model {self.name!r} is {self.state}; the next request for it waits for its"
                    " load",
                    model=self.name,
                )
            case ModelState.UNLOADED:
                return ModelNotFoundError(
                    f"model {self.name!r} is not loaded; load it with POST /models/load, or start"
                    " the server with --autoload",
                    param="model",
                )
            case ModelState.FAILED:
                return ModelUnavailableError(
                    f"model {self.name!r} could not be loaded: {self.reason}. Mend the cause and"
                    " load it again with POST /models/load",
                    retry_after=None,
                )
        return ModelUnavailableError(f"model {self.name!r} is {self.state}; try again later")

    def check_loadable(self) -> None:
        """Check that a load of the model can begin.

        Raises:
            ModelLoadedError: it is loaded, or a load is in progress.
            ModelUnavailableError: it unloads.
        """
        match self.state:
            case ModelState.LOADING | ModelState.LOADED if self.poison is None:
                raise ModelLoadedError(
                    f"model {self.name!r} is {self.state} already, from {self.source}. Unload it"
                    " first, or load this one under another name",
                    param="model",
                )
            case ModelState.UNLOADING:
                raise ModelUnavailableError(f"model {self.name!r} is unloading; try again later")
