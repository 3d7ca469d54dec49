"""Loads models, one after another, makes room for them, and loads poisoned ones again."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import finalize, ref

from heddle.engine.engine import Engine
from heddle.engine.turns import Turns
from heddle.errors import EngineClosedError, HeddleError, OutOfMemoryError
from heddle.hosting.load_thread import LoadThread
from heddle.hosting.status import LoadProgress, ModelState
from heddle.process_memory import reclaim_memory, trim_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig, RegistryConfig
    from heddle.engine.libraries import Libraries
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.hosting.entries import Entries, Entry
    from heddle.hosting.unloads import Keeper, Unloads
    from heddle.weights.progress import Progress

_log = logging.getLogger(__name__)

STEADY = 600
"""Seconds without poison after which `auto_recover` counts from 0 again."""


@dataclass(eq=False)
class Loads:
    """Begins loads and ends them in a thread of its own, which ends with this object.

    Attributes:
        observers: get the name and the engine of each model that is loaded, before its first
            request and in the thread of the load. Add to them under the lock of the entries.
        end: ends the thread after the loads that have begun.
    """

    _entries: Entries
    _unloads: Unloads
    _keeper: Keeper
    _config: RegistryConfig
    _libraries: Libraries
    _progress: Progress | None
    _turns: Turns = field(default_factory=Turns)
    _thread: LoadThread = field(default_factory=LoadThread)
    observers: list[Callable[[str, Engine], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = finalize(self, self._thread.end)

    def begin(self, entry: Entry) -> Future[Engine]:
        """Begin the load of a model that can be loaded. Needs the lock of the entries.

        Raises:
            EngineClosedError: the registry is closed.
        """
        if self._entries.closed:
            raise EngineClosedError("the registry is closed")
        if entry.engine is not None:  # nothing refers to it when the thread has done these two
            self._thread.add(partial(self._end_former, entry, entry.engine))
            self._thread.add(reclaim_memory)
        entry.state, entry.reason, entry.engine = ModelState.LOADING, None, None
        entry.progress = LoadProgress(self._progress)
        load: Future[Engine] = Future()
        entry.load = load
        self._thread.add(partial(self._load, entry, load))
        return load

    def begin_again(self, entry: Entry, config: EngineConfig) -> Future[Engine]:
        """Begin to load a loaded model with other settings. Needs the lock, and raises as `begin`.

        Its requests wait for the load.
        """
        former = entry.config
        load = self.begin(entry)
        entry.former, entry.config = former, config
        return load

    def _end_former(self, entry: Entry, engine: Engine) -> None:
        """End the engine before the next load: it is poisoned, or stops and leaves its requests."""
        engine.leave(self._rescue(entry))
        self._unloads.show_former(entry.name, engine)

    def _load(self, entry: Entry, load: Future[Engine]) -> None:
        """Load a model in this thread, and set the result of `load`."""
        try:
            engine = self._publish(entry, self._open(entry))
        except BaseException as error:
            reason = error.message if isinstance(error, HeddleError) else f"{error}"
            _log.info("model %s could not be loaded: %s", entry.name, reason)
            _forget_objects(error)
            reclaim_memory()
            if not self._loads_as_before(entry):
                with self._entries.lock:
                    entry.state, entry.reason = ModelState.FAILED, reason
                self._entries.end_interrupted(entry, f"the model could not be loaded: {reason}")
            load.set_exception(error)
        else:
            trim_memory()  # what the load read and needs no more
            load.set_result(engine)

    def _loads_as_before(self, entry: Entry) -> bool:
        """Go back to the settings before those that could not be loaded, if there are any."""
        with self._entries.lock:
            if entry.former is None or self._entries.closed:
                return False
            entry.config, entry.former = entry.former, None
            entry.load = load = Future[Engine]()
        self._load(entry, load)
        return True

    def _open(self, entry: Entry) -> Engine:
        """Load the model. Under a memory limit, unload idle models until it fits.

        Raises: see `Registry.load`.
        """
        while True:
            if self._entries.closed:
                raise EngineClosedError("the registry is closed")
            try:
                return Engine.load(
                    entry.source,
                    self._config_of(entry),
                    progress=entry.progress,
                    turns=self._turns,
                    libraries=self._libraries,
                )
            except OutOfMemoryError:
                idle = self._least_recently_used() if self._config.memory else None
                if idle is None:
                    raise
                self._unloads.unload_quietly(idle, f"to make room for {entry.name}")

    def _config_of(self, entry: Entry) -> EngineConfig:
        """The settings of a model, with the memory that loaded models leave under the limit.

        They may differ from those of the default model.
        """
        entries, config = self._entries, entry.config
        if entry.name != entries.default:
            config = config.beside_default(entries.config)
        if not self._config.memory:
            return config
        with entries.lock:
            others = list(entries.by_name.values())
        left = max(1, self._config.memory - sum(one.status().memory_bytes for one in others))
        most = min(left, config.model_memory) if config.model_memory else left
        return replace(config, model_memory=most)

    def _least_recently_used(self) -> str | None:
        """Name of the idle model that requests have not named for the longest time.

        Poisoned models do not count: they hold no memory.
        """
        with self._entries.lock:
            entries = self._entries.by_name.values()
            loaded = [one for one in entries if one.state is ModelState.LOADED]
        idle = [entry for entry in loaded if not entry.in_flight and entry.poison is None]
        return min(idle, key=lambda entry: entry.used_at).name if idle else None

    # --- publish ---------------------------------------------------------------------------------

    def _publish(self, entry: Entry, engine: Engine) -> Engine:
        """Show the engine to all observers, then let requests find it. Returns it.

        Raises:
            EngineClosedError: the registry was closed during the load. The engine is closed now.
        """
        shown = 0
        try:
            if entry.former is not None:
                for interrupted in entry.interrupted:
                    engine.check_going_on(interrupted)
            with self._entries.lock:
                self._entries.rename(entry, engine.model.info.id)
            while (waiting := self._place(entry, engine, shown)) is None:
                for call in self.observers[shown:]:
                    call(entry.name, engine)
                    shown += 1
        except BaseException:
            engine.close()
            raise
        engine.thread.when_ended(self._recovery(entry))
        for interrupted in waiting:  # before any new request
            engine.go_on(interrupted, self._config.resume_tries)
        with self._entries.lock:
            if entry.engine is engine:  # it has not failed since, so that another load has begun
                entry.state = ModelState.LOADED
                self._keeper.look()
        return engine

    def _place(self, entry: Entry, engine: Engine, shown: int) -> list[Interrupted] | None:
        """Put the engine in its place. Returns the requests that wait for it.

        Returns None and does nothing if an observer has come after the first `shown` ones.
        """
        with self._entries.lock:
            if self._entries.closed:
                raise EngineClosedError("the registry was closed during the load")
            if shown < len(self.observers):
                return None
            if self._config.resume_tries and self._config.auto_recover:
                engine.thread.leave_requests_to(self._rescue(entry))
            entry.engine, entry.former = engine, None
            entry.loaded_at = entry.used_at = time.monotonic()
            return entry.take_interrupted()

    # --- recover ---------------------------------------------------------------------------------

    def _recovery(self, entry: Entry) -> Callable[[], None]:
        """The function that an engine calls when it has ended. It keeps neither of them alive."""
        loads, model = ref(self), ref(entry)

        def ended() -> None:
            if (one := loads()) is not None and (ended := model()) is not None:
                one._recover_later(ended)

        return ended

    def _rescue(self, entry: Entry) -> Callable[[Interrupted], bool]:
        """The function that gets the requests of an engine that fails. It keeps nothing alive."""
        loads, model = ref(self), ref(entry)

        def rescue(interrupted: Interrupted) -> bool:
            one, failed = loads(), model()
            return one is not None and failed is not None and one._keep(failed, interrupted)

        return rescue

    def _keep(self, entry: Entry, interrupted: Interrupted) -> bool:
        """Keep the requests of a model for its next load or for the thread that unloads it."""
        with self._entries.lock:
            loads = entry.state is ModelState.LOADING and entry.engine is None
            unloads = entry.state is ModelState.UNLOADING
            if self._entries.closed or not (loads or unloads or self._recovers(entry)):
                return False
            entry.interrupted.append(interrupted)
        _log.warning("%d requests of %s wait for another engine", interrupted.count, entry.name)
        return True

    def _recover_later(self, entry: Entry) -> None:
        """Load a poisoned model again after a while, if the settings say so."""
        with self._entries.lock:
            if not self._recovers(entry):
                return
            delay = 2.0**entry.recoveries
            entry.recoveries += 1
        _log.warning("loading the poisoned model %s again in %g s", entry.name, delay)
        timer = threading.Timer(delay, self._recover, (entry,))
        timer.daemon = True
        timer.start()

    def _recover(self, entry: Entry) -> None:
        with self._entries.lock:
            if self._may_recover(entry):
                self.begin(entry)

    def _recovers(self, entry: Entry) -> bool:
        """Whether the settings say that a model that has just failed is loaded again."""
        if time.monotonic() - entry.loaded_at > STEADY:
            entry.recoveries = 0
        return self._may_recover(entry) and entry.recoveries < self._config.auto_recover

    def _may_recover(self, entry: Entry) -> bool:
        unloads = entry.state is ModelState.UNLOADING
        return entry.poison is not None and not unloads and not self._entries.closed


def _forget_objects(error: BaseException) -> None:
    """Drop the objects that the frames of an error refer to. A load may have made large ones, and
    its error is kept until the next load."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
