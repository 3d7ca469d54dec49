"""The adapters of a process, by the names that requests use, and those of a model in memory.

A request keeps its adapter: one that is put out, replaced or unloaded leaves the memory when the
last request with it has ended.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heddle.engine.adapters import Adapted, AdapterSize
from heddle.errors import (
    AdapterNotFoundError,
    ConfigError,
    HeddleError,
    InvalidRequestError,
    UnsupportedModelError,
)
from heddle.executors.adapting import AdaptingExecutor
from heddle.extensions.lora.parameters import AdapterChoice, LoraParams
from heddle.extensions.lora.settings import LoraSettings
from heddle.hub_place import hub_place
from heddle.sizes import gigabytes
from heddle.step import AdapterUse
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import EngineConfig
    from heddle.engine.adapters import P
    from heddle.executors.adapting import Adapter
    from heddle.extended import Extended
    from heddle.extensions.lora.reading import AdapterFile
    from heddle.hub_place import HubPlace
    from heddle.loading.loaded_model import LoadedModel

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}")


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter that requests may name.

    Attributes:
        name: its name in requests.
        source: a folder, a file or a name of the hub.
        model: the name of the model that it changes; empty: the default model.
        number: its number in llama.cpp's API. Numbers are not used again.
        scale: the factor in requests that name no adapters; 0: they do not have it.
    """

    name: str
    source: str
    model: str
    number: int
    scale: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter in the memory of a model's executor.

    Attributes:
        adapter: the executor's own.
        digest: of its contents, with the type that they are rounded to.
        bytes: of its matrices.
        rank: its largest rank.
    """

    adapter: Adapter
    digest: str
    bytes: int
    rank: int


class AdapterLibrary:
    """The adapters of a process. Any thread may call all methods.

    Attributes:
        memory: most bytes of the adapters of each model.
        type: the type that matrices are rounded to; None: they are kept as their files have them.
        place: of files of the hub.
        has_defaults: whether requests that name no adapters may have some.
    """

    def __init__(
        self, memory: int, place: HubPlace | None = None, type: TensorType | None = None
    ) -> None:
        """No adapters yet. `place`: where those of the hub are kept, and whether to fetch them."""
        self.memory, self.place, self.type = memory, place, type
        self.has_defaults = False
        self._known: dict[str, KnownAdapter] = {}
        self._lock = threading.Lock()
        self._numbers = 0

    @classmethod
    def of(cls, config: EngineConfig) -> AdapterLibrary:
        """The adapters of the settings. They are loaded when the first request names them.

        Raises:
            ConfigError: an entry is not NAME=PATH, or two have one name.
        """
        settings = config.of(LoraSettings)
        type = TensorType.I8 if settings.lora_type == "int8" else None
        library = cls(settings.lora_memory, hub_place(config), type)
        for entry in settings.lora:
            name, equals, source = entry.partition("=")
            if not equals or not source:
                raise ConfigError(
                    f"lora must be NAME=PATH, got {entry!r}; name the adapter before its path",
                    param="lora",
                )
            if name in library.names:
                raise ConfigError(
                    f"lora has two adapters of the name {name!r}; rename one", param="lora"
                )
            library.add(name, source)
        return library

    def of_model(self, model: LoadedModel) -> ModelAdapters:
        """The adapters as requests to `model` may name them."""
        return ModelAdapters(self, model)

    def add(self, name: str, source: str, model: str = "") -> KnownAdapter:
        """Let requests name an adapter. It replaces one of that name, which running requests keep.

        Raises:
            ConfigError: the name is none.
        """
        check_name(name)
        with self._lock:
            before = self._known.get(name)
            number = self._numbers if before is None else before.number
            self._numbers += before is None
            known = KnownAdapter(name, source, model, number)
            self._known = {**self._known, name: known}
        return known

    def remove(self, name: str) -> None:
        """Forget an adapter. Requests that began with it keep it.

        Raises:
            AdapterNotFoundError: there is none of this name.
        """
        with self._lock:
            if name not in self._known:
                raise AdapterNotFoundError(self._unknown(name), param="lora_name")
            self._known = {key: one for key, one in self._known.items() if key != name}

    def set_scales(self, scales: dict[int, float]) -> None:
        """Set the factors of requests that name no adapters, by number; 0 for all others.

        Raises:
            InvalidRequestError: no adapter has one of the numbers.
        """
        with self._lock:
            numbers = {one.number for one in self._known.values()}
            for number in scales.keys() - numbers:
                raise InvalidRequestError(
                    f"no adapter has id {number}; GET /lora-adapters lists them", param="id"
                )
            self._known = {
                name: replace(one, scale=scales.get(one.number, 0.0))
                for name, one in self._known.items()
            }
            self.has_defaults = any(scales.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all adapters."""
        return tuple(self._known)

    @property
    def known(self) -> tuple[KnownAdapter, ...]:
        """All adapters, in order of their numbers."""
        return tuple(sorted(self._known.values(), key=lambda one: one.number))

    def model_of(self, name: str) -> str | None:
        """The model that an adapter changes, empty for the default model; None: no such adapter."""
        found = self._known.get(name)
        return None if found is None else found.model

    def find(self, name: str | int) -> KnownAdapter:
        """The adapter that a request names.

        Raises:
            InvalidRequestError: there is none.
        """
        if isinstance(name, str):
            found = self._known.get(name)
        else:
            found = next((one for one in self.known if one.number == name), None)
        if found is None:
            raise InvalidRequestError(self._unknown(name), param="lora")
        return found

    def _unknown(self, name: str | int) -> str:
        shown = name if isinstance(name, int) else name[:64]
        return (
            f"no adapter is named {shown!r}; there is {', '.join(self._known) or 'none'}. Load it"
            " with POST /v1/load_lora_adapter, or start with --lora NAME=PATH"
        )


def check_name(name: str) -> None:
    """Raise ConfigError if `name` cannot be that of an adapter."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "the name of an adapter must be 1 to 128 letters, digits or any of _.:/@+-, and begin"
            f" with a letter or digit, got {name[:80]!r}",
            param="lora",
        )


class ModelAdapters:
    """The adapters of one loaded model. Any thread may call all methods.

    Attributes:
        library: the adapters, of all models of the process.
    """

    def __init__(self, library: AdapterLibrary, model: LoadedModel) -> None:
        self.library = library
        self._model = model
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()  # by digest
        self._digests: dict[tuple[str, str], str] = {}  # by name and source
        self._lock, self._one_load = threading.Lock(), threading.Lock()

    def asked(self, params: P, model: str, name: str) -> P:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        if params.of(LoraParams).lora is not None:
            return params
        chosen = tuple(
            AdapterChoice(one.name, one.scale)
            for one in self.library.known
            if one.scale and one.model == model
        )
        if name:
            chosen = (AdapterChoice(name),)
        return params.having(LoraParams(lora=chosen)) if chosen else params

    def take(self, params: Extended) -> Adapted | None:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        choices = params.of(LoraParams).lora
        if not choices:
            return None
        uses, contents = [], []
        for choice in choices:
            loaded = self.load(self.library.find(choice.name))
            if choice.scale:
                uses.append(AdapterUse(loaded.adapter, choice.scale))
                contents.append(f"{loaded.digest} {choice.scale!r}")
        return Adapted(uses, ", ".join(contents)) if uses else None

    def load_all(self) -> None:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        for known in self.library.known:
            if known.model:
                continue
            try:
                self.load(known)
            except HeddleError as error:
                raise ConfigError(
                    f"--lora {known.name}={known.source}: {error.message}", param="lora"
                ) from error

    def replace(self, name: str, source: str, model: str = "") -> LoadedAdapter:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        check_name(name)
        with self._one_load:
            loaded = self._read(KnownAdapter(name, source, model, -1))
        self.library.add(name, source, model)
        self._put_out([key for key in self._digests if key[0] == name and key[1] != source])
        return loaded

    def remove(self, name: str) -> None:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        self.library.remove(name)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Put out an adapter that requests may no longer name."""
        self._put_out([key for key in self._digests if key[0] == name])

    def load(self, known: KnownAdapter) -> LoadedAdapter:
        """The adapter in memory, which becomes the most recently used one.

        Raises:
            InvalidRequestError: it is larger than `lora_memory`.
            ModelSourceError, ModelFileError, UnsupportedModelError: it cannot be loaded.
            OutOfMemoryError: there is too little memory.
        """
        found = self._used(known)
        if found is None:
            with self._one_load:  # without the lock: requests with other adapters do not wait
                found = self._used(known) or self._read(known)
        return found

    def _used(self, known: KnownAdapter) -> LoadedAdapter | None:
        """The adapter, now the most recently used one; None: it is not in memory."""
        with self._lock:
            found = self._loaded.get(self._digests.get((known.name, known.source), ""))
            if found is not None:
                self._loaded.move_to_end(found.digest)
            return found

    @property
    def loaded(self) -> Sequence[LoadedAdapter]:
        """Those in memory, the least recently used first."""
        with self._lock:
            return tuple(self._loaded.values())

    @property
    def sizes(self) -> dict[str, AdapterSize]:
        """See :class:`heddle.engine.adapters.ModelAdapters`."""
        with self._lock:
            return {
                name: AdapterSize(digest, self._loaded[digest].bytes, self._loaded[digest].rank)
                for (name, _), digest in self._digests.items()
                if digest in self._loaded
            }

    def close(self) -> None:
        """Free the memory of all adapters: the engine has ended."""
        with self._lock:
            self._loaded.clear()
            self._digests.clear()

    def _put_out(self, keys: Sequence[tuple[str, str]]) -> None:
        """Put out adapters, unless others have their contents."""
        with self._lock:
            gone = {self._digests.pop(key) for key in keys} - set(self._digests.values())
            for digest in gone & self._loaded.keys():
                del self._loaded[digest]

    def _read(self, known: KnownAdapter) -> LoadedAdapter:
        """Load an adapter from its files."""
        executor = self._model.executor
        if not isinstance(executor, AdaptingExecutor):
            raise UnsupportedModelError(
                f"adapters are not supported where {self._model.info.id} runs"
                f" ({executor.summary.partition(',')[0]}); load it with --device cpu",
                param="lora",
            )
        file, type = self._file(known), self.library.type
        digest = file.digest if type is None else f"{file.digest} {type.name}"
        found = self._loaded.get(digest)  # equal contents are loaded once
        if found is None:
            changes = file.changes
            if type is not None:
                changes = {
                    name: replace(one, type=type) if isinstance(one, LowRank) else one
                    for name, one in changes.items()
                }
            made = executor.make_adapter(changes)
            found = LoadedAdapter(made, digest, made.bytes, file.rank)
            self._check_size(found)
        with self._lock:
            replaced = self._digests.get((known.name, known.source), "")
            self._digests[known.name, known.source] = found.digest
            if replaced not in self._digests.values():
                self._loaded.pop(replaced, None)
            self._loaded[found.digest] = found
            self._loaded.move_to_end(found.digest)
            while sum(one.bytes for one in self._loaded.values()) > self.library.memory:
                self._loaded.popitem(last=False)
        size = found.bytes / 1e6
        _log.info("adapter %s: rank %d, %.1f MB in memory", known.name, found.rank, size)
        return found

    def _file(self, known: KnownAdapter) -> AdapterFile:
        from heddle.extensions.lora.reading import read_adapter
        from heddle.models.build import family_of
        from heddle.weights.formats import open_checkpoint

        with open_checkpoint(self._model.info.path, None, family_of) as checkpoint:
            return read_adapter(known.source, checkpoint, self.library.place)

    def _check_size(self, one: LoadedAdapter) -> None:
        if one.bytes > self.library.memory:
            raise InvalidRequestError(
                f"the adapter takes {gigabytes(one.bytes)} and adapters may take"
                f" {gigabytes(self.library.memory)} (lora_memory); raise the setting",
                param="lora",
            )
