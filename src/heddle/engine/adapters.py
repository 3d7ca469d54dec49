"""Adapters as the core sees them: who loads them, and those of a request."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from heddle.doors import extensions, refer
from heddle.errors import AdapterNotFoundError, UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.config import EngineConfig
    from heddle.extended import Extended
    from heddle.loading.loaded_model import LoadedModel
    from heddle.step import AdapterUse

P = TypeVar("P", bound="Extended")

_SCOPE = "\0adapters "


@dataclass(frozen=True, slots=True)
class Adapted:
    """The adapters of one request.

    Attributes:
        uses: for its sequence.
        contents: identifies contents and factors of all of them. Requests with equal contents
            compute equal states of equal tokens. No NUL.
    """

    uses: Sequence[AdapterUse]
    contents: str

    def scope(self, salt: str | None) -> str:
        """The scope of prefixes with these adapters. No salt of a client begins with NUL."""
        return f"{_SCOPE}{self.contents}\0{salt or ''}"


def contents_in(scope: str | None) -> str:
    """The `contents` of the adapters whose prefixes have this scope; empty: it is of none."""
    if scope is None or not scope.startswith(_SCOPE):
        return ""
    return scope.removeprefix(_SCOPE).partition("\0")[0]


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """The size of an adapter in memory.

    Attributes:
        digest: of its contents. Adapters with equal contents share their memory.
        bytes: of its matrices.
        rank: its largest rank.
    """

    digest: str
    bytes: int
    rank: int


class ModelAdapters(Protocol):
    """The adapters that requests to one model may name. Any thread may call all methods."""

    @property
    def library(self) -> AdapterLibrary:
        """The adapters, of all models of the process."""
        ...

    @property
    def sizes(self) -> Mapping[str, AdapterSize]:
        """The adapters in memory, by name."""
        ...

    def asked(self, params: P, model: str, name: str) -> P:
        """`params` with the adapter `name`, unless they name adapters themselves.

        An empty `name`: with the default adapters of the model. `model` is the model's name in
        requests, empty for the default model.
        """
        ...

    def take(self, params: Extended) -> Adapted | None:
        """The adapters that `params` ask for; None if they name none.

        It loads those that are not in memory, which takes 0.1 s and longer.

        Raises:
            InvalidRequestError: an adapter is unknown, or changes another model.
            HeddleError: it cannot be loaded.
        """
        ...

    def replace(self, name: str, source: str, model: str = "") -> object:
        """Load an adapter, and then let requests name it. One of that name is replaced.

        Running requests keep the old one. `model` is the name of this model in requests, empty for
        the default model.

        Raises:
            ConfigError: the name is none.
            HeddleError: the adapter cannot be loaded. One of this name stays.
        """
        ...

    def remove(self, name: str) -> None:
        """Forget an adapter. Requests that began with it keep it.

        Raises:
            AdapterNotFoundError: there is none of this name.
        """
        ...

    def load_all(self) -> None:
        """Load the adapters of the default model, which this model is.

        Raises:
            ConfigError: one cannot be loaded; names it.
        """
        ...

    def close(self) -> None:
        """Free the memory of all adapters: the engine has ended."""
        ...


class AdapterLibrary(Protocol):
    """The adapters of a process, by the names that requests use."""

    @property
    def has_defaults(self) -> bool:
        """Whether requests that name no adapters may have some."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The names of all adapters."""
        ...

    def model_of(self, name: str) -> str | None:
        """The model that an adapter changes, empty for the default model; None: no such adapter."""
        ...

    def of_model(self, model: LoadedModel) -> ModelAdapters:
        """The adapters as requests to `model` may name them."""
        ...


def open_adapters(config: EngineConfig) -> AdapterLibrary:
    """The adapters of the settings. Nothing is loaded yet.

    Raises:
        ConfigError: a setting is wrong.
    """
    for extension in extensions().values():
        if extension.adapters:
            library: AdapterLibrary = refer(extension.adapters).of(config)
            return library
    return _NoAdapters()


class _NoAdapters:
    """The library, and the adapters of each model, where no extension loads any."""

    has_defaults = False
    names: Sequence[str] = ()
    sizes: Mapping[str, AdapterSize] = MappingProxyType({})

    @property
    def library(self) -> AdapterLibrary:
        return self

    def of_model(self, model: LoadedModel) -> ModelAdapters:
        return self

    def model_of(self, name: str) -> str | None:
        return None

    def asked(self, params: P, model: str, name: str) -> P:
        return params

    def take(self, params: Extended) -> Adapted | None:
        return None

    def replace(self, name: str, source: str, model: str = "") -> object:
        raise UnsupportedParameterError("no installed extension loads adapters", param="lora")

    def remove(self, name: str) -> None:
        raise AdapterNotFoundError(f"no adapter is named {name!r}; there is none", param="lora")

    def load_all(self) -> None:
        """Nothing to do: there are no adapters."""

    def close(self) -> None:
        """Nothing to free: there are no adapters."""
