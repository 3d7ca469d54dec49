"""The entries of the models of a registry: what is known of each, their names, and the default."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.errors import (
    ModelLoadedError,
    ModelNotFoundError,
    ModelUnavailableError,
    ModelUnloadedError,
    NoCopyError,
    RequestsRunError,
)
from heddle.hosting.status import ModelState, ModelStatus
from heddle.sizes import counted

if TYPE_CHECKING:
    from concurrent.futures import Future

    from heddle.config import EngineConfig
    from heddle.engine.engine import Engine
    from heddle.engine.health import Poison
    from heddle.engine.requests.interrupted import Interrupted
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
        engine: while it is loaded or unloading, and at the end of its load.
        load: the load in progress, or the last one.
        progress: of the load in progress.
        reason: why the last load failed.
        loaded_at, used_at: when it was loaded, and when a request last named it, in seconds of
            `time.monotonic`.
        recoveries: loads after poison since the model last ran for STEADY seconds.
        interrupted: requests of former engines that wait for the next load.
        former: settings to go back to if the load in progress, with others, fails; None: it then
            stays failed.
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
    interrupted: list[Interrupted] = field(default_factory=list)
    former: EngineConfig | None = None

    def take_interrupted(self) -> list[Interrupted]:
        """The requests that wait for a load. The caller lets them go on or gives them up."""
        interrupted, self.interrupted = self.interrupted, []
        return interrupted

    @property
    def in_flight(self) -> int:
        """Requests that run or wait."""
        engine = self.engine  # another thread may change it
        count = sum(one.count for one in self.interrupted)
        if engine is None:
            return count
        now = engine.snapshot()
        return count + now.running + now.queue_depth

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

    def check_reloadable(self, config: EngineConfig) -> None:
        """Check that the model can be loaded again with these settings.

        Raises:
            ModelNotFoundError: it is not loaded.
            ModelUnavailableError: it loads or unloads, or its engine is poisoned or stuck.
            RequestsRunError: requests run or wait, and the settings change their tokens.
        """
        if self.state in (ModelState.UNLOADED, ModelState.FAILED):
            raise ModelNotFoundError(f"model {self.name!r} is not loaded", param="model")
        engine = self.engine
        if self.state is not ModelState.LOADED or engine is None or not engine.health.ready:
            state = engine.health.state if engine else self.state
            raise ModelUnavailableError(f"model {self.name!r} is {state}; try again later")
        changed = config.changed_answers(self.config)
        if changed and self.in_flight:
            raise RequestsRunError(
                f"{', '.join(changed)} would change the tokens of the"
                f" {counted(self.in_flight, 'request')} that run or wait. Wait until they have"
                " ended, or unload the model and load it",
                param=changed[0],
            )


@dataclass(slots=True, eq=False)
class Entries:
    """The entries by name. Whoever reads or changes them, or calls a method, holds `lock`.

    Only `end_interrupted` takes it.

    Attributes:
        config: settings of models that have none of their own.
        keep_alive: as in `Entry`, for models that have none of their own.
        default: name of the model for requests that name none; empty without a model.
        closed: no load may begin or end any more.
        by_name: the entries, in the order in which they came.
        lock: guards all of these.
    """

    config: EngineConfig
    keep_alive: float
    default: str = ""
    closed: bool = False
    by_name: dict[str, Entry] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def loaded(self) -> dict[str, Engine]:
        """Engines of the loaded models by name, those at the end of their load included."""
        return {
            name: entry.engine
            for name, entry in self.by_name.items()
            if entry.state is not ModelState.UNLOADING and entry.engine is not None
        }

    def named(self, name: str) -> Entry:
        """The entry of a model, loaded or not.

        Raises:
            ModelNotFoundError: no model has this name.
        """
        entry = self.by_name.get(name)
        if entry is None:
            known = ", ".join(map(repr, self.by_name)) or "none"
            if not name:
                raise ModelNotFoundError(
                    f"no model is named, and there is no default model; there is {known}. Name one,"
                    " or start the server with --default NAME",
                    param="model",
                )
            raise ModelNotFoundError(
                f"model {name!r} is not loaded; there is {known}", param="model"
            )
        return entry

    def new(
        self, source: str, name: str | None, config: EngineConfig | None, keep_alive: float | None
    ) -> Entry:
        """An entry for a load; it is not among the others yet. Arguments as for `Registry.load`."""
        from heddle.weights.sources import name_before_fetch

        alive = self.keep_alive if keep_alive is None else keep_alive
        known = self.by_name.get(source)
        if known is not None and name not in (None, known.name):
            source, known = known.source, None  # once more, under another name
        served = name or (known.name if known else name_before_fetch(source))
        return Entry(served, source, config or self.config, keep_alive=alive)

    def copy_of(self, entry: Entry) -> Engine:
        """The engine with the fewest requests among those that give the same tokens as a model's.

        Raises:
            NoCopyError: there is none.
        """
        copies = [
            other
            for other in self.by_name.values()
            if other is not entry and other.state is ModelState.LOADED and not other.poison
            if entry.engine and other.engine and other.engine.replaces(entry.engine)
        ]
        best = min(copies, key=lambda one: one.in_flight, default=None)
        if best is None or best.engine is None:
            raise NoCopyError(
                f"no other loaded model goes on with the requests of {entry.name!r}: it must have"
                " the same files, the same kv_type and device, and at least the same context and"
                " KV cache. Load one under another name first (POST /models/load), or leave move"
                " out",
                param="move",
            )
        return best.engine

    def end_interrupted(self, entry: Entry, why: str) -> None:
        """End the requests of a model that wait for a load, without the lock."""
        with self.lock:
            interrupted = entry.take_interrupted()
        for one in interrupted:
            one.give_up(why)

    def insert(self, entry: Entry) -> None:
        """Make a model known. The first one is the default."""
        self.by_name[entry.name] = entry
        self.default = self.default or entry.name

    def forget(self, name: str) -> None:
        """Know a model no longer. If it was the default, the first of the others is."""
        del self.by_name[name]
        if self.default == name:
            self.default = next(iter(self.by_name), "")

    def rename(self, entry: Entry, name: str) -> None:
        """Give a model the name of its file, which was not known before a package was fetched."""
        if entry.name == entry.source and name not in self.by_name:
            del self.by_name[entry.name]
            self.default = name if self.default == entry.name else self.default
            entry.name = name
            self.by_name[name] = entry
