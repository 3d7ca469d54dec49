"""The models of one process: finds them by name, has them loaded and unloaded.

Every loaded model has its own engine thread. `entries.py` holds the models. `loads.py` loads them
in one thread, one after another. `unloads.py` unloads them, idle ones in a thread.

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

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.closing import Closing
from heddle.config import EngineConfig, RegistryConfig
from heddle.engine.libraries import Libraries
from heddle.errors import ModelLoadedError, ModelNotFoundError
from heddle.hosting.entries import Entries, Entry
from heddle.hosting.loads import Loads
from heddle.hosting.status import ModelState, ModelStatus
from heddle.hosting.unloads import Keeper, Unloads
from heddle.weights.confine import AllowedModels, models_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from heddle.engine.engine import Engine
    from heddle.weights.progress import Progress

LONGEST_KEPT = 1e9
"""Most seconds that a model is kept without a request. A thread cannot wait for much longer."""


class Registry(Closing):
    """Loaded models by name. Any thread may call its methods.

    Attributes:
        config: settings of the registry.
        engine_config: settings of models that are loaded without settings of their own.
        libraries: engram tables and adapters that requests may name, of all models.
        allowed: the models that requests may load.
    """

    def __init__(
        self,
        config: RegistryConfig = RegistryConfig(),  # noqa: B008 - frozen
        engine: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
        *,
        progress: Progress | None = None,
        libraries: Libraries | None = None,
    ) -> None:
        """Know the models in the folder `models_dir`, and load none yet.

        `engine` becomes `engine_config`. `progress` shows downloads and loads. `libraries`:
        None: the registry opens those of `engine`.

        Raises:
            ConfigError: there is no such folder, or an engram table of the settings is refused.
            EngramError, EngramFileError: a table cannot be read, or is damaged.
        """
        self.config = config
        self.libraries: Libraries = libraries or Libraries.of(engine)
        self.engine_config = engine
        self.allowed: AllowedModels = AllowedModels(
            folder=models_folder(config.models_dir), hub=config.hub_models
        )
        self._entries = Entries(engine, config.keep_alive)
        self._unloads = Unloads(self._entries, config.unload_seconds, config.resume_tries)
        self._keeper = Keeper(self._entries, self._unloads)
        self._loads = Loads(
            self._entries, self._unloads, self._keeper, config, self.libraries, progress
        )
        for name, path in self.allowed.in_folder():
            self._entries.by_name[name] = Entry(
                name, str(path), engine, known=True, found=True, keep_alive=config.keep_alive
            )

    @classmethod
    def of(cls, engine: Engine) -> Registry:
        """A registry with one engine, which the caller keeps: it closes engine and registry."""
        libraries = Libraries(engine.engrams.library, engine.adapters.library)
        registry = cls(engine=engine.config, libraries=libraries)
        name, now = engine.model.info.id, time.monotonic()
        entry = Entry(name, str(engine.model.info.path), engine.config, known=True)
        entry.state, entry.engine = ModelState.LOADED, engine
        entry.loaded_at = entry.used_at = now
        registry._entries.insert(entry)
        return registry

    # --- find ------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all models that are loaded or known, the default first."""
        with self._entries.lock:
            names = dict.fromkeys((self._entries.default, *self._entries.by_name))
        return tuple(filter(None, names))

    @property
    def default(self) -> str:
        """Name of the model for requests that name none; empty without a model."""
        return self._entries.default

    @default.setter
    def default(self, name: str) -> None:
        self._entries.default = name

    def __contains__(self, name: str) -> bool:
        with self._entries.lock:
            return name in self._entries.by_name

    def engine(self, name: str | None = None, *, renew: bool = True) -> Engine:
        """The engine of a loaded model. Arguments and errors as for :meth:`find`."""
        return self.find(name, renew=renew)[1]

    def find(self, name: str | None = None, *, renew: bool = True) -> tuple[str, Engine]:
        """Name and engine of a loaded model. Without a name, those of the default model.

        With `renew`, this counts as a request: its `keep_alive` begins again.

        Raises:
            ModelNotFoundError: no model has this name, or it is not loaded.
            ModelUnloadedError: it is not loaded, and the setting `autoload` is on.
            ModelUnavailableError: it loads or unloads, or its load failed.
        """
        with self._entries.lock:
            name = name or self._entries.default
            entry = self._entries.by_name.get(name)
            if entry is None or entry.state is not ModelState.LOADED or entry.engine is None:
                autoload = self.config.autoload
                raise self._entries.named(name).why_not_served(autoload=autoload)
            if renew:
                entry.used_at = time.monotonic()
            return name, entry.engine

    @property
    def engines(self) -> dict[str, Engine]:
        """Engines of the loaded models by name."""
        with self._entries.lock:
            return self._entries.loaded

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._entries.closed

    def on_loaded(self, call: Callable[[str, Engine], None]) -> None:
        """Call `call` with the name and engine of each loaded model, now and later.

        A later call comes before the first request of the model, in the thread of the load.
        """
        with self._entries.lock:
            self._loads.observers.append(call)
            engines = self._entries.loaded
        for name, engine in engines.items():
            call(name, engine)

    def on_unloaded(self, call: Callable[[str, Engine], None]) -> None:
        """Call `call` with the name and the former engine of each model that leaves the memory.

        The engine has ended, and its figures are final. `call` must not use the registry.
        """
        self._unloads.observers.append(call)

    def name_of_load(self, load: Future[Engine]) -> str:
        """The name of the model that `load` loads or has loaded.

        Raises:
            ModelNotFoundError: it has been unloaded since.
        """
        with self._entries.lock:
            for entry in self._entries.by_name.values():
                if entry.load is load:
                    return entry.name
        raise ModelNotFoundError("the model has been unloaded since it was loaded", param="model")

    def status(self) -> tuple[ModelStatus, ...]:
        """All models that are loaded or known. Never waits for a load or for an engine."""
        with self._entries.lock:
            entries = list(self._entries.by_name.values())
        return tuple(entry.status() for entry in entries)

    # --- engram tables and adapters --------------------------------------------------------------

    def check_libraries(self) -> None:
        """Check that each engram table fits a loaded model, once all known models are loaded.

        Load the adapters of the default model, if it is loaded.

        Raises:
            ConfigError: a table fits none, and its text names both fingerprints; or an adapter
                cannot be loaded.
        """
        engines = self.engines
        if len(engines) == len(self.names):
            self.libraries.engrams.check([one.engrams for one in engines.values()])
        if self.default in engines:
            engines[self.default].adapters.load_all()

    # --- load ------------------------------------------------------------------------------------

    def add(
        self, model: str | Path, *, name: str | None = None, config: EngineConfig | None = None
    ) -> str:
        """Make a model known without loading it. Returns its name. The first one is the default.

        Arguments as for :meth:`load`.

        Raises:
            ModelLoadedError: another model has this name.
        """
        with self._entries.lock:
            entry = self._entries.new(str(model), name, config, None)
            other = self._entries.by_name.get(entry.name)
            if other is not None and not (other.found and other.state is ModelState.UNLOADED):
                raise ModelLoadedError(
                    f"two models are named {entry.name!r}: {other.source} and {entry.source}. Give"
                    " one of them another name",
                    param="model",
                )
            entry.known = True
            self._entries.insert(entry)
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
            source = self.allowed.source_of(source)
        with self._entries.lock:
            wanted = self._entries.new(source, name, config, keep_alive)
            entry = self._entries.by_name.get(wanted.name)
            if entry is None:
                self._entries.insert(wanted)
                return self._loads.begin(wanted)
            same = source in (entry.source, entry.name)
            if entry.state is ModelState.LOADING and same and entry.load is not None:
                return entry.load
            entry.check_loadable()
            entry.source = entry.source if same else source
            entry.config = config or entry.config
            if keep_alive is not None:
                entry.keep_alive = keep_alive
            return self._loads.begin(entry)

    def reload(self, name: str, config: EngineConfig) -> Engine:
        """Load a loaded model again, with other settings. Returns its engine.

        Its requests wait for the load, and go on with the tokens that they would have got. If the
        load fails, the model is loaded with its earlier settings again, and its requests go on.

        Raises:
            ModelNotFoundError: no model of this name is loaded.
            ModelUnavailableError: it loads or unloads, or its engine is poisoned or stuck.
            RequestsRunError: requests run or wait, and the settings change their tokens.
            HeddleError: it cannot be loaded so; see :meth:`Engine.load`.
        """
        return self.begin_reload(name, config).result()

    def begin_reload(self, name: str, config: EngineConfig) -> Future[Engine]:
        """Begin to load a model again in a thread. Arguments and errors as for :meth:`reload`."""
        with self._entries.lock:
            entry = self._entries.named(name)
            entry.check_reloadable(config)
            return self._loads.begin_again(entry, config)

    def change_limits(self, name: str | None, **limits: int) -> None:
        """Change settings of a model that are `live`. None: of models that are loaded later.

        Raises as `Engine.change_limits`, and ModelNotFoundError.
        """
        with self._entries.lock:
            if name is None:
                self.engine_config = replace(self.engine_config, **limits)  # type: ignore[arg-type]
                self._entries.config = self.engine_config
                return
            entry = self._entries.named(name)
            entry.config = replace(entry.config, **limits)  # type: ignore[arg-type]
            engine = entry.engine
        if engine is not None:
            engine.change_limits(**limits)

    def settings_of(self, name: str) -> EngineConfig:
        """The settings of a model.

        Raises:
            ModelNotFoundError: no model has this name.
        """
        with self._entries.lock:
            return self._entries.named(name).config

    def begin_known(self, name: str) -> Future[Engine]:
        """Begin the load of a known model, or join the load in progress. Raises as :meth:`load`.

        The result is its engine, at once if it is loaded.
        """
        with self._entries.lock:
            entry = self._entries.named(name)
            if entry.state in (ModelState.LOADING, ModelState.LOADED) and entry.load is not None:
                return entry.load
            entry.check_loadable()
            return self._loads.begin(entry)

    def source_of(self, model: str) -> str:
        """The source that a client's `model` means: of a known model, or an allowed one.

        Raises: see `AllowedModels.source_of`.
        """
        with self._entries.lock:
            entry = self._entries.by_name.get(model)
        return self.allowed.source_of(model) if entry is None else entry.source

    def forget(self, name: str) -> None:
        """Know a model no longer, whose files are gone. It must not be loaded."""
        with self._entries.lock:
            self._entries.forget(name)

    # --- unload ----------------------------------------------------------------------------------

    def unload(self, name: str, *, seconds: float | None = None, move: bool = False) -> None:
        """Unload a model. New requests are refused at once; accepted ones may finish.

        Args:
            name: name of the model.
            seconds: most seconds that accepted requests may take; then they end with
                EngineClosedError. None: the setting `unload_seconds`.
            move: let accepted requests go on at once in another loaded copy of the model.

        Raises:
            ModelNotFoundError: no model of this name is loaded.
            ModelUnavailableError: it loads or unloads.
            NoCopyError: `move`, and no other loaded model gives the same tokens. Nothing stops.
        """
        self._unloads.unload(name, seconds, move=move)

    def keep(self, name: str, seconds: float) -> None:
        """Unload a model after `seconds` without a request; negative: never.

        The shortest time is 1 s, because the keeper looks at running requests that often. The
        longest one is LONGEST_KEPT.

        Raises:
            ModelNotFoundError: no model has this name.
        """
        with self._entries.lock:
            self._entries.named(name).keep_alive = (
                0.0 if seconds < 0 else min(max(1.0, seconds), LONGEST_KEPT)
            )
            self._keeper.look()

    def close(self) -> None:
        """End all requests, unload all models, and refuse further loads. Idempotent.

        A load in progress cannot be interrupted: it ends with EngineClosedError.
        """
        with self._entries.lock:
            self._entries.closed = True
            self._loads.end()
            self._keeper.end()
            entries = list(self._entries.by_name.values())
            engines = [entry.engine for entry in entries]
        for entry in entries:
            self._entries.end_interrupted(entry, "the program ends")
        # At once: an engine may save pages for seconds, while requests of another one run on.
        closing = [threading.Thread(target=engine.close) for engine in engines if engine]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
