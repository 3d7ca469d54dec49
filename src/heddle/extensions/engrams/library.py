"""The open engram tables of a process, by the names that requests use.

Tables are shared by all slots, and by all models with their vocabulary. A table that is loaded
again or unloaded stays open for the requests that began with it.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, cast

from heddle.closing import open_file
from heddle.errors import (
    ConfigError,
    EngramError,
    EngramFileError,
    EngramNotFoundError,
    ForbiddenError,
    InvalidRequestError,
)
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.engrams.parameters import EngramForm, EngramParams
from heddle.extensions.engrams.settings import EngramSettings
from heddle.folders import user_path
from heddle.weights.confine import is_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from heddle._native import Engram
    from heddle.config import EngineConfig
    from heddle.engine import Engine
    from heddle.hosting.registry import Registry
    from heddle.loading.loaded_model import LoadedModel
    from heddle.sampling_params import SamplingParams

_SUFFIX = ".engr"
_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,64}")

_LARGEST_VOCABULARY = 2**20
"""Bound on token ids of version 1, which does not say its vocabulary. No model has as many."""


class ModelVocabulary(Protocol):
    """The vocabulary of a loaded model."""

    @property
    def model(self) -> str:
        """The model's name, for errors."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """See :func:`heddle.extensions.engrams.format.vocabulary_fingerprint`."""
        ...


@dataclass(frozen=True, slots=True)
class OpenEngram:
    """An open table.

    Attributes:
        name: its name in requests.
        path: its file.
        table: the reader.
    """

    name: str
    path: Path
    table: Engram

    @property
    def is_checked(self) -> bool:
        """Whether the file says its vocabulary, which version 1 does not."""
        return self.table.version > 1

    def fits(self, vocabulary: ModelVocabulary) -> bool:
        """Whether the table may be used with this vocabulary."""
        return not self.is_checked or self.table.fingerprint == vocabulary.fingerprint

    def check(self, vocabularies: Sequence[ModelVocabulary]) -> None:
        """Check that the table fits one of these vocabularies.

        Raises:
            ConfigError: it fits none; names both fingerprints.
        """
        if any(map(self.fits, vocabularies)):
            return
        known = ", ".join(f"{one.model}: {one.fingerprint.hex()}" for one in vocabularies)
        raise ConfigError(
            f"engram {self.name!r} ({self.path}) was built for another vocabulary: its fingerprint"
            f" is {self.table.fingerprint.hex()}, not that of {known or 'any model'}. Build it"
            " again with --model",
            param="engram",
        )


class EngramLibrary:
    """Open tables by name. Any thread may call all methods.

    Attributes:
        alpha: strength of the bias in requests that do not say it.
        unchecked: whether tables of version 1 are taken.
    """

    def __init__(self, *, alpha: float, unchecked: bool) -> None:
        """Hold no tables yet."""
        self.alpha = alpha
        self.unchecked = unchecked
        self._tables: dict[str, OpenEngram] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, config: EngineConfig) -> EngramLibrary:
        """The tables of the settings.

        Raises:
            ConfigError: an entry is not NAME=PATH, or two have one name; or as :meth:`load`.
            EngramError, EngramFileError: as :meth:`load`.
        """
        settings = config.of(EngramSettings)
        library = cls(alpha=settings.engram_alpha, unchecked=settings.engram_unchecked)
        for entry in settings.engram:
            name, equals, path = entry.partition("=")
            if not equals or not path:
                raise ConfigError(
                    f"engram must be NAME=PATH, got {entry!r}; name the table before its path",
                    param="engram",
                )
            if name in library.names:
                raise ConfigError(
                    f"engram has two tables of the name {name!r}; rename one", param="engram"
                )
            library.load(name, user_path(path, "engram"))
        return library

    def of_model(self, model: LoadedModel) -> ModelEngrams:
        """The tables as requests to `model` may name them."""
        return ModelEngrams(self, model)

    def load(
        self, name: str, path: Path, vocabularies: Sequence[ModelVocabulary] | None = None
    ) -> OpenEngram:
        """Open the table at `path` under `name`. It replaces a table of that name.

        Args:
            name: its name in requests.
            path: the file.
            vocabularies: the table must fit one of them; None: they are not known yet, and
                :meth:`check` follows.

        Raises:
            ConfigError: the name is none, the table has version 1 and these are not taken, or it
                fits none of the vocabularies.
            EngramError: the file cannot be read.
            EngramFileError: the file is damaged.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "the name of an engram must be 1 to 64 letters, digits or any of _.-, and not begin"
                f" with a dot, got {name[:80]!r}",
                param="engram",
            )
        opened = OpenEngram(name, path, _opened(path))
        if not (opened.is_checked or self.unchecked):
            raise ConfigError(
                f"engram {name!r} ({path}) has version 1, which does not say for which vocabulary"
                " it was built. Build it again, or take it with --engram-unchecked if it was built"
                " for this model",
                param="engram",
            )
        if vocabularies is not None:
            opened.check(vocabularies)
        with self._lock:
            self._tables = {**self._tables, name: opened}
        return opened

    def unload(self, name: str) -> None:
        """Forget a table. Requests that began with it keep it.

        Raises:
            EngramNotFoundError: there is no such table.
        """
        with self._lock:
            if name not in self._tables:
                raise EngramNotFoundError(_unknown(name, self._tables), param="name")
            self._tables = {key: one for key, one in self._tables.items() if key != name}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tables."""
        return tuple(self._tables)

    @property
    def tables(self) -> tuple[OpenEngram, ...]:
        """All tables."""
        return tuple(self._tables.values())

    def check(self, vocabularies: Sequence[ModelVocabulary]) -> None:
        """Check that each table fits one of these vocabularies.

        Raises:
            ConfigError: a table fits none; names both fingerprints.
        """
        for one in self.tables:
            one.check(vocabularies)

    def find(self, name: str, vocabulary: ModelVocabulary) -> Engram:
        """The table that a request names.

        Raises:
            InvalidRequestError: there is no such table, or it has another vocabulary.
        """
        tables = self._tables
        if name not in tables:
            fitting = [key for key, one in tables.items() if one.fits(vocabulary)]
            raise InvalidRequestError(_unknown(name, fitting), param="engram")
        try:
            tables[name].check([vocabulary])
        except ConfigError as error:
            raise InvalidRequestError(error.message, param="engram") from None
        return tables[name].table


class ModelEngrams:
    """The engram tables that requests to one model may name. Any thread may call all methods.

    Attributes:
        library: the tables, of all models of the process.
    """

    def __init__(self, library: EngramLibrary, model: LoadedModel) -> None:
        self.library = library
        self._model = model

    @property
    def model(self) -> str:
        """The model's name, for errors."""
        return self._model.info.id

    @cached_property
    def fingerprint(self) -> bytes:
        """The fingerprint of the model's vocabulary. Computing it takes 0.1 s."""
        from heddle.extensions.engrams.format import vocabulary_fingerprint  # it loads numpy

        return vocabulary_fingerprint(self._model.tokenizer.vocabulary_entries())

    def bias(self, params: SamplingParams) -> EngramBias | None:
        """The bias that `params` ask for; None if they name no table.

        Raises:
            InvalidRequestError: a table is unknown, or was built for another vocabulary.
        """
        asked = params.of(EngramParams)
        if not asked.engram:
            return None
        tables = tuple((self.library.find(one.name, self), one.weight) for one in asked.engram)
        alpha = self.library.alpha if asked.engram_alpha is None else asked.engram_alpha
        opening, closing = ((), ()) if asked.engram_in_reasoning else self._marks
        literal = asked.engram_form is EngramForm.LITERAL
        return EngramBias(tables, alpha, literal, opening, closing)

    def rules(self, params: SamplingParams) -> tuple[EngramBias, ...]:
        """See :class:`heddle.engine.engrams.ModelEngrams`."""
        bias = self.bias(params)
        return () if bias is None else (bias,)

    @cached_property
    def _marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens of the marks of reasoning; empty for a model without."""
        template = self._model.template
        if template is None or template.dialect.marks is None:
            return (), ()
        encode = self._model.tokenizer.encode
        marks = template.dialect.marks
        opening, closing = (
            tuple(encode(mark, add_special=False, continues=True)) for mark in marks
        )
        return opening, closing


def library_of(registry: Registry) -> EngramLibrary:
    """The tables of a registry of models, with all that this extension can do with them."""
    return cast("EngramLibrary", registry.libraries.engrams)


def load_for_client(registry: Registry, name: str, path: str) -> OpenEngram:
    """Open a table that a client names. It replaces a table of that name.

    Raises:
        ForbiddenError: requests may not name the file.
        EngramNotFoundError: requests may name it, but there is no such file.
        HeddleError: the table is refused; see `EngramLibrary.load`.
    """
    found = _in_folder(path, registry.allowed.folder)
    return library_of(registry).load(name, found, [*map(tables_of, registry.engines.values())])


def tables_of(engine: Engine) -> ModelEngrams:
    """The tables of an engine, with all that this extension can do with them."""
    return cast("ModelEngrams", engine.engrams)


def _in_folder(path: str, folder: Path | None) -> Path:
    """The table that a client's `path` means: a file `*.engr` below the models' folder."""
    place = PurePosixPath(path)
    if folder is None:
        raise ForbiddenError(
            "requests may load no engram; set --models-dir to the folder with the tables, or"
            " start with --engram NAME=PATH",
            param="path",
        )
    if place.is_absolute() and place.is_relative_to(folder):
        place = place.relative_to(folder)
    found = folder / place
    leaves = place.is_absolute() or ".." in place.parts or not path.isprintable()
    if leaves or place.suffix != _SUFFIX or not is_inside(found, folder):
        raise ForbiddenError(
            f"engram {path[:80]!r} is no {_SUFFIX} file of the models' folder; send a path"
            " relative to --models-dir",
            param="path",
        )
    if not os.path.isfile(found):  # noqa: PTH113 - Path.is_file raises for a long name
        raise EngramNotFoundError(
            f"there is no engram {path[:80]!r} in the models' folder; send the path of a file",
            param="path",
        )
    return found


def _unknown(name: str, known: Iterable[str]) -> str:
    return (
        f"no engram is named {name[:64]!r}; there is {', '.join(known) or 'none'}. Load it with"
        " POST /engrams/load, or start with --engram NAME=PATH"
    )


def _opened(path: Path) -> Engram:
    from heddle.extensions.engrams.table import (
        OpenTable,  # here, so that importing heddle stays light
    )

    descriptor = open_file(path, EngramError, "; name a table of `heddle engram build`")
    try:
        with os.fdopen(descriptor, "rb") as file:
            version = int.from_bytes(file.read(8)[4:], "little")
            return OpenTable(path, file.fileno(), _LARGEST_VOCABULARY if version == 1 else 0)
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        raise EngramFileError(
            f"{path}: {field} {reason}. The file is damaged; build or copy it again", field=field
        ) from None
    except RuntimeError as error:
        raise EngramError(f"{path}: {error}") from error
