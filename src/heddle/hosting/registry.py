"""The models of one process: loads them, finds them by name, and unloads them.

Every loaded model has its own engine thread. The registry has one thread for all loads, and one
that unloads idle models.

The life of a model::

    (unknown or unloaded) -> loading -> loaded -> unloading -> (unknown or unloaded)
                              ^  |        |
                              |  |        +-> poisoned -> unloading
                              |  +-> failed      |
                              +------------------+ load, or the setting `auto_recover`

A name is reserved before its load begins, so callers that load the same model at once share one
load. Models of the settings stay known after they are unloaded; other models are forgotten.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import traceback
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING
from weakref import finalize, ref

from heddle.closing import Closing
from heddle.config import EngineConfig, RegistryConfig
from heddle.engine.engine import Engine
from heddle.engine.engrams import open_engrams
from heddle.engine.turns import Turns
from heddle.errors import (
    EngineClosedError,
    HeddleError,
    ModelLoadedError,
    ModelNotFoundError,
    ModelUnavailableError,
    OutOfMemoryError,
)
from heddle.hosting.entry import Entry
from heddle.hosting.keeper import Keeper
from heddle.hosting.load_thread import LoadThread
from heddle.hosting.status import LoadProgress, ModelState, ModelStatus
from heddle.process_memory import reclaim_memory, trim_memory
from heddle.weights.confine import AllowedModels, models_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from heddle.engine.engrams import EngramLibrary
    from heddle.weights.progress import Progress

_log = logging.getLogger(__name__)

LONGEST_KEPT = 1e9
"""Most seconds that a model is kept without a request. A thread cannot wait for much longer."""
STEADY = 600
"""Seconds without poison after which `auto_recover` counts from 0 again."""


class Registry(Closing):
    """Loaded models by name. Any thread may call its methods.

    Attributes:
        config: settings of the registry.
        engine_config: settings of models that are loaded without settings of their own.
        default: name of the model for requests that name none; empty without a model.
        engrams: the engram tables that requests may name, shared by all models.
    """

    def __init__(
        self,
        config: RegistryConfig = RegistryConfig(),  # noqa: B008 - frozen
        engine: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
        *,
        progress: Progress | None = None,
        engrams: EngramLibrary | None = None,
    ) -> None:
        """Know the models in the folder `models_dir`, and load none yet.

        `engine` becomes `engine_config`. `progress` shows downloads and loads. `engrams` are open
        engram tables; None: the registry opens those of `engine`.

        Raises:
            ConfigError: there is no such folder, or an engram table of the settings is refused.
            EngramError, EngramFileError: a table cannot be read, or is damaged.
        """
        self.config = config
        self.engrams = open_engrams(engine) if engrams is None else engrams
        self.default = ""
        self.engine_config = engine
        self._allowed = AllowedModels(
            folder=models_folder(config.models_dir), hub=config.hub_models
        )
        self._callbacks: list[Callable[[str, Engine], None]] = []
        self._former_callbacks: list[Callable[[str, Engine], None]] = []
        self._progress = progress
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._loads = LoadThread()
        self._end_loads = finalize(self, self._loads.end)
        self._keeper = Keeper(self._lock)
        self._turns = Turns()
        self._closed = False
        for name, path in self._allowed.in_folder():
            self._entries[name] = Entry(
                name, str(path), engine, known=True, found=True, keep_alive=config.keep_alive
            )

    @classmethod
    def of(cls, engine: Engine) -> Registry:
        """A registry with one engine, which the caller keeps: it closes engine and registry."""
        registry = cls(engine=engine.config, engrams=engine.engrams.library)
        name, now = engine.model.info.id, time.monotonic()
        entry = Entry(name, str(engine.model.info.path), engine.config, known=True)
        entry.state, entry.engine = ModelState.LOADED, engine
        entry.loaded_at = entry.used_at = now
        registry._entries[name] = entry
        registry.default = name
        return registry

    # --- find ------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all models that are loaded or known, the default first."""
        with self._lock:
            names = [name for name in self._entries if name != self.default]
        return (self.default, *names) if self.default else tuple(names)

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._entries

    def engine(self, name: str | None = None, *, renew: bool = True) -> Engine:
        """The engine of a loaded model. Without a name, that of the default model.

        With `renew`, this counts as a request: its `keep_alive` begins again.

        Raises:
            ModelNotFoundError: no model has this name, or it is not loaded.
            ModelUnloadedError: it is not loaded, and the setting `autoload` is on.
            ModelUnavailableError: it loads or unloads, or its load failed.
        """
        with self._lock:
            name = name or self.default
            entry = self._entries.get(name)
            if entry is None or entry.state is not ModelState.LOADED or entry.engine is None:
                autoload = self.config.autoload
                raise self._entry(name).why_not_served(autoload=autoload)
            if renew:
                entry.used_at = time.monotonic()
            return entry.engine

    @property
    def engines(self) -> dict[str, Engine]:
        """Engines of the loaded models by name."""
        with self._lock:
            return {
                name: entry.engine
                for name, entry in self._entries.items()
                if entry.state is ModelState.LOADED and entry.engine is not None
            }

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def on_loaded(self, call: Callable[[str, Engine], None]) -> None:
        """Call `call` with the name and engine of each loaded model, now and later.

        A later call comes before the first request of the model, in the thread of the load.
        """
        with self._lock:
            self._callbacks.append(call)
            loaded = [one for one in self._entries.values() if one.state is ModelState.LOADED]
            engines = {one.name: one.engine for one in loaded if one.engine is not None}
        for name, engine in engines.items():
            call(name, engine)

    def on_unloaded(self, call: Callable[[str, Engine], None]) -> None:
        """Call `call` with the name and the former engine of each model that leaves the memory.

        The engine has ended, and its figures are final. `call` must not use the registry.
        """
        self._former_callbacks.append(call)

    def name_of_load(self, load: Future[Engine]) -> str:
        """The name of the model that `load` loads or has loaded.

        Raises:
            ModelNotFoundError: it has been unloaded since.
        """
        with self._lock:
            for entry in self._entries.values():
                if entry.load is load:
                    return entry.name
        raise ModelNotFoundError("the model has been unloaded since it was loaded", param="model")

    def status(self) -> tuple[ModelStatus, ...]:
        """All models that are loaded or known. Never waits for a load or for an engine."""
        with self._lock:
            entries = list(self._entries.values())
        return tuple(entry.status() for entry in entries)

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(map(repr, self._entries)) or "none"
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

    # --- engram tables ---------------------------------------------------------------------------

    def load_engram(self, name: str, path: str) -> object:
        """Open an engram table that a client names. It replaces a table of that name.

        Raises:
            ForbiddenError, EngramNotFoundError: see `AllowedModels.engram_at`.
            HeddleError: the table is refused; see `EngramLibrary.load`.
        """
        found = self._allowed.engram_at(path)
        return self.engrams.load(name, found, [one.engrams for one in self.engines.values()])

    def check_engrams(self) -> None:
        """Check that each engram table fits a loaded model, once all known models are loaded.

        Raises:
            ConfigError: a table fits none; names both fingerprints.
        """
        engines = self.engines
        if len(engines) == len(self.names):
            self.engrams.check([one.engrams for one in engines.values()])

    # --- load ------------------------------------------------------------------------------------

    def add(
        self, model: str | Path, *, name: str | None = None, config: EngineConfig | None = None
    ) -> str:
        """Make a model known without loading it. Returns its name. The first one is the default.

        Arguments as for :meth:`load`.

        Raises:
            ModelLoadedError: another model has this name.
        """
        with self._lock:
            entry = self._new_entry(str(model), name, config, None)
            other = self._entries.get(entry.name)
            if other is not None and not (other.found and other.state is ModelState.UNLOADED):
                raise ModelLoadedError(
                    f"two models are named {entry.name!r}: {other.source} and {entry.source}. Give"
                    " one of them another name",
                    param="model",
                )
            entry.known = True
            self._insert(entry)
            return entry.name

    def load(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        config: EngineConfig | None = None,
        keep_alive: float | None = None,
    ) -> Engine:
        """Load a model and return its engine. If another caller loads it, wait for that load.

        Args:
            model: name of a known model, or as for :meth:`Engine.load`.
            name: its name in requests; None: the name that `Engine.load` gives it.
            config: settings of its engine; None: those of the registry.
            keep_alive: seconds without a request after which it is unloaded, 0 for never; None: the
                setting of the registry.

        Raises:
            ModelLoadedError: a model of this name is loaded already.
            ModelUnavailableError: a model of this name unloads.
            EngineClosedError: the registry is closed.
            HeddleError: it cannot be loaded; see :meth:`Engine.load`.
        """
        return self.begin_load(model, name=name, config=config, keep_alive=keep_alive).result()

    def begin_load(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        config: EngineConfig | None = None,
        keep_alive: float | None = None,
        confined: bool = False,
    ) -> Future[Engine]:
        """Begin a load in a thread. Arguments and errors are those of :meth:`load`.

        With `confined`, `model` comes from a client: it names a known model, or what the settings
        `models_dir` and `hub_models` allow. Further errors: see `AllowedModels.source_of`.
        """
        source = str(model)
        if confined and source not in self:
            source = self._allowed.source_of(source)
        with self._lock:
            wanted = self._new_entry(source, name, config, keep_alive)
            entry = self._entries.get(wanted.name)
            if entry is None:
                self._insert(wanted)
                return self._begin(wanted)
            same = source in (entry.source, entry.name)
            if entry.state is ModelState.LOADING and same and entry.load is not None:
                return entry.load
            entry.check_loadable()
            if not same:
                entry.source = source
            if config is not None:
                entry.config = config
            if keep_alive is not None:
                entry.keep_alive = keep_alive
            return self._begin(entry)

    def begin_known(self, name: str) -> Future[Engine]:
        """Begin the load of a known model, or join the load in progress. Raises as :meth:`load`.

        The result is its engine, at once if it is loaded.
        """
        with self._lock:
            entry = self._entry(name)
            if entry.state in (ModelState.LOADING, ModelState.LOADED) and entry.load is not None:
                return entry.load
            entry.check_loadable()
            return self._begin(entry)

    def source_of(self, model: str) -> str:
        """The source that a client's `model` means: of a known model, or an allowed one.

        Raises: see `AllowedModels.source_of`.
        """
        with self._lock:
            entry = self._entries.get(model)
        return self._allowed.source_of(model) if entry is None else entry.source

    def forget(self, name: str) -> None:
        """Know a model no longer, whose files are gone. It must not be loaded."""
        with self._lock:
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._entries[name]
        if self.default == name:
            self.default = next(iter(self._entries), "")

    def _new_entry(
        self, source: str, name: str | None, config: EngineConfig | None, keep_alive: float | None
    ) -> Entry:
        from heddle.weights.sources import name_before_fetch

        alive = self.config.keep_alive if keep_alive is None else keep_alive
        known = self._entries.get(source)
        if known is not None and name not in (None, known.name):
            source, known = known.source, None  # once more, under another name
        served = name or (known.name if known else name_before_fetch(source))
        return Entry(served, source, config or self.engine_config, keep_alive=alive)

    def _insert(self, entry: Entry) -> None:
        self._entries[entry.name] = entry
        self.default = self.default or entry.name

    def _begin(self, entry: Entry) -> Future[Engine]:
        if self._closed:
            raise EngineClosedError("the registry is closed")
        if entry.engine is not None:  # poisoned: nothing refers to it from now on
            self._show_former(entry.name, entry.engine)
            self._loads.add(reclaim_memory)
        entry.state, entry.reason, entry.engine = ModelState.LOADING, None, None
        entry.progress = LoadProgress(self._progress)
        load: Future[Engine] = Future()
        entry.load = load
        self._loads.add(partial(self._load, entry, load))
        return load

    def _load(self, entry: Entry, load: Future[Engine]) -> None:
        """Load a model in this thread, and set the result of `load`."""
        try:
            engine = self._publish(entry, self._open(entry))
        except BaseException as error:
            reason = error.message if isinstance(error, HeddleError) else f"{error}"
            _log.info("model %s could not be loaded: %s", entry.name, reason)
            with self._lock:
                entry.state, entry.reason = ModelState.FAILED, reason
            _forget_objects(error)
            reclaim_memory()
            load.set_exception(error)
        else:
            trim_memory()  # what the load read and needs no more
            load.set_result(engine)

    def _publish(self, entry: Entry, engine: Engine) -> Engine:
        """Show the engine to all callbacks, then let requests find it. Returns it.

        Raises:
            EngineClosedError: the registry was closed during the load. The engine is closed now.
        """
        shown = 0
        try:
            with self._lock:
                self._rename(entry, engine.model.info.id)
            while not self._is_published(entry, engine, shown):
                for call in self._callbacks[shown:]:
                    call(entry.name, engine)
                    shown += 1
        except BaseException:
            engine.close()
            raise
        return engine

    def _is_published(self, entry: Entry, engine: Engine, shown: int) -> bool:
        """Make the model loaded, unless a callback has come after the first `shown` ones."""
        with self._lock:
            if self._closed:
                raise EngineClosedError("the registry was closed during the load")
            if shown < len(self._callbacks):
                return False
            entry.engine, entry.state = engine, ModelState.LOADED
            engine.when_ended(self._recovery(entry))
            entry.loaded_at = entry.used_at = time.monotonic()
            self._keep()
            return True

    def _recovery(self, entry: Entry) -> Callable[[], None]:
        """The function that an engine calls when it has ended. It keeps neither of them alive."""
        registry, model = ref(self), ref(entry)

        def ended() -> None:
            if (one := registry()) is not None and (ended := model()) is not None:
                one._recover_later(ended)

        return ended

    def _recover_later(self, entry: Entry) -> None:
        """Load a poisoned model again after a while, if the settings say so."""
        with self._lock:
            if entry.poison is None or self._closed or entry.state is not ModelState.LOADED:
                return
            if time.monotonic() - entry.loaded_at > STEADY:
                entry.recoveries = 0
            if entry.recoveries >= self.config.auto_recover:
                return
            delay = 2.0**entry.recoveries
            entry.recoveries += 1
        _log.warning("loading the poisoned model %s again in %g s", entry.name, delay)
        timer = threading.Timer(delay, self._recover, (entry,))
        timer.daemon = True
        timer.start()

    def _recover(self, entry: Entry) -> None:
        with self._lock:
            if entry.poison is not None and entry.state is ModelState.LOADED and not self._closed:
                self._begin(entry)

    def _open(self, entry: Entry) -> Engine:
        """Load the model. Under a memory limit, unload idle models until it fits.

        Raises: see :meth:`load`.
        """
        while True:
            if self._closed:
                raise EngineClosedError("the registry is closed")
            try:
                return Engine.load(
                    entry.source,
                    self._bounded(self._own_config(entry)),
                    progress=entry.progress,
                    turns=self._turns,
                    engrams=self.engrams,
                )
            except OutOfMemoryError:
                idle = self._least_recently_used() if self.config.memory else None
                if idle is None:
                    raise
                self._unload_quietly(idle, f"to make room for {entry.name}")

    def _own_config(self, entry: Entry) -> EngineConfig:
        """The settings of a model, which may differ from those of the default model."""
        if entry.name == self.default:
            return entry.config
        return entry.config.beside_default(self.engine_config)

    def _bounded(self, config: EngineConfig) -> EngineConfig:
        """The settings of a model, with the memory that loaded models leave under the limit."""
        if not self.config.memory:
            return config
        held = sum(status.memory_bytes for status in self.status())
        left = max(1, self.config.memory - held)
        most = min(left, config.model_memory) if config.model_memory else left
        return dataclasses.replace(config, model_memory=most)

    def _least_recently_used(self) -> str | None:
        """Name of the idle model that requests have not named for the longest time.

        Poisoned models do not count: they hold no memory.
        """
        with self._lock:
            loaded = [one for one in self._entries.values() if one.state is ModelState.LOADED]
        idle = [entry for entry in loaded if not entry.in_flight and entry.poison is None]
        return min(idle, key=lambda entry: entry.used_at).name if idle else None

    def _rename(self, entry: Entry, name: str) -> None:
        """Give a model the name of its file, which was not known before a package was fetched."""
        if entry.name == entry.source and name not in self._entries:
            del self._entries[entry.name]
            self.default = name if self.default == entry.name else self.default
            entry.name = name
            self._entries[name] = entry

    # --- unload ----------------------------------------------------------------------------------

    def unload(self, name: str, *, seconds: float | None = None) -> None:
        """Unload a model. New requests are refused at once; accepted ones may finish.

        Args:
            name: name of the model.
            seconds: most seconds that accepted requests may take; then they end with
                EngineClosedError. None: the setting `unload_seconds`.

        Raises:
            ModelNotFoundError: no model of this name is loaded.
            ModelUnavailableError: it loads or unloads.
        """
        with self._lock:
            entry = self._entry(name)
            if entry.state in (ModelState.LOADING, ModelState.UNLOADING):
                raise ModelUnavailableError(f"model {name!r} is {entry.state}; try again later")
            if entry.state is ModelState.UNLOADED:
                raise ModelNotFoundError(f"model {name!r} is not loaded", param="model")
            entry.state = ModelState.UNLOADING
        if entry.engine is not None:
            _end(entry.engine, self.config.unload_seconds if seconds is None else seconds)
            self._show_former(entry.name, entry.engine)
        with self._lock:
            entry.state, entry.engine, entry.load = ModelState.UNLOADED, None, None
            if not entry.known:
                self._forget(entry.name)
        reclaim_memory()

    def _show_former(self, name: str, engine: Engine) -> None:
        for call in self._former_callbacks:
            try:
                call(name, engine)
            except Exception:
                _log.exception("an observer failed when %s was unloaded", name)

    def keep(self, name: str, seconds: float) -> None:
        """Unload a model after `seconds` without a request; negative: never.

        The shortest time is 1 s, because the keeper looks at running requests that often. The
        longest one is LONGEST_KEPT.

        Raises:
            ModelNotFoundError: no model has this name.
        """
        with self._lock:
            self._entry(name).keep_alive = (
                0.0 if seconds < 0 else min(max(1.0, seconds), LONGEST_KEPT)
            )
            self._keep()

    def _keep(self) -> None:
        """Let the keeper look at all models. Needs the lock."""
        self._keeper.look(self._entries, partial(self._unload_quietly, why="after its keep_alive"))

    def _unload_quietly(self, name: str, why: str) -> None:
        _log.info("unloading %s %s", name, why)
        try:
            self.unload(name)
        except HeddleError as error:  # another caller was faster
            _log.info("%s was not unloaded: %s", name, error.message)

    def close(self) -> None:
        """End all requests, unload all models, and refuse further loads. Idempotent.

        A load in progress cannot be interrupted: it ends with EngineClosedError.
        """
        with self._lock:
            self._closed = True
            self._end_loads()
            self._keeper.end()
            engines = [entry.engine for entry in self._entries.values()]
        # At once: an engine may save pages for seconds, while requests of another one run on.
        closing = [threading.Thread(target=engine.close) for engine in engines if engine]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


def _end(engine: Engine, seconds: float) -> None:
    """Close an engine. Its accepted requests may take `seconds` to finish."""
    cut = threading.Timer(seconds, engine.close)
    cut.start()
    engine.close(drain=True)
    cut.cancel()
    cut.join()  # its thread refers to the engine


def _forget_objects(error: BaseException) -> None:
    """Drop the objects that the frames of an error refer to. A load may have made large ones, and
    its error is kept until the next load."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
