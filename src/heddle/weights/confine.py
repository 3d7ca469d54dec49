"""The models that a request may name.

A request comes from a client, so its model is no path of this machine. `AllowedModels.source_of`
turns the name into a source for :func:`heddle.weights.sources.find`, or refuses it. The registry
asks it before it reads or fetches anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from heddle.config import MAX_MODEL_NAME
from heddle.errors import (
    ConfigError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelSourceError,
)
from heddle.folders import user_path
from heddle.weights.catalog import ALIASES
from heddle.weights.formats import name_of
from heddle.weights.gguf.split import part_names
from heddle.weights.hub import names as hub

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SUFFIX = ".gguf"
_CONFIG = "config.json"
_MOST_ENTRIES = 10_000
"""Most files and folders in a model's folder. The check of links looks at all of them."""


@dataclass(frozen=True, slots=True)
class AllowedModels:
    """The models that requests may load.

    Attributes:
        configured: sources that the operator has named at the start, by the model's name. A source
            may be any path.
        folder: absolute path of `--models-dir`; None: requests may name no file.
        hub: whether requests may name models of the Hugging Face hub (`--hub-models`).
    """

    configured: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    hub: bool = False

    def source_of(self, model: str) -> str:
        """The source that `model` means, for :func:`heddle.weights.sources.find`.

        `model` is the name of a configured model, an alias of the catalogue, a file or a folder of
        a model below `folder`, or a name of the hub. The first of these that exists wins. A file
        may lack its `.gguf`. A result below `folder` is an absolute path; a result of the hub
        begins with `hf:`, so that a file with this name in the working directory is not meant.

        The answer does not depend on files outside of `folder`, so a client cannot find out which
        files exist.

        Raises:
            InvalidRequestError: `model` is empty, too long, or has characters that no name has.
            ForbiddenError: `model` may exist, but requests may not name it.
            ModelNotFoundError: requests may name `model`, but there is no such model.
        """
        if not 0 < len(model) <= MAX_MODEL_NAME or not model.isprintable() or "\\" in model:
            raise InvalidRequestError(
                f"model must be a name of 1 to {MAX_MODEL_NAME} printable characters without"
                f" backslashes, got {model[:40]!r}",
                param="model",
            )
        if model in self.configured:
            return self.configured[model]
        if model in ALIASES:
            return model
        path = self._path(model)
        if path is not None:
            return str(path)
        return self._hub_name(model)

    def in_folder(self) -> Iterator[tuple[str, Path]]:
        """Name and path of each model in the folder itself, in order. A link out of it is none."""
        if self.folder is None:
            return
        for path in sorted(self.folder.iterdir()):
            parts = part_names(path.name)
            if not _is_model(path) or path.name != parts[0]:
                continue
            try:
                self._check_links(path.name, path)
            except ForbiddenError:
                continue
            yield name_of(path), path

    def _path(self, model: str) -> Path | None:
        """The path of a model below the folder; None if there is no such file or folder."""
        place = PurePosixPath(model)
        if ".." in place.parts or model.startswith("~"):
            raise self._forbidden(model, "may not leave the models' folder")
        if place.is_absolute():
            if self.folder is None or not place.is_relative_to(self.folder):
                raise self._forbidden(model, "is outside of the models' folder")
            place = place.relative_to(self.folder)
        if self.folder is None or not place.parts:
            return None
        for candidate in (self.folder / place, self.folder / f"{place}{_SUFFIX}"):
            if _is_model(candidate):
                self._check_links(model, candidate)
                return candidate
        return None

    def _check_links(self, model: str, path: Path) -> None:
        """Refuse a model with a file that a symbolic link takes out of the folder."""
        assert self.folder is not None
        for count, file in enumerate(_files(path)):
            if count > _MOST_ENTRIES:
                raise self._forbidden(model, f"has more than {_MOST_ENTRIES:,} files")
            if not is_inside(file, self.folder):
                link = file.relative_to(self.folder)
                raise self._forbidden(model, f"has a link out of the models' folder: {str(link)!r}")

    def _hub_name(self, model: str) -> str:
        try:
            name = hub.parse(model)
        except ModelSourceError as error:
            raise InvalidRequestError(error.message, param="model") from None
        if name is not None:
            if not self.hub:
                raise self._forbidden(model, "is a name of the hub, which requests may not load")
            return hub.PREFIX + model.removeprefix(hub.PREFIX)
        if ":" in model:
            raise self._forbidden(model, "is no name that requests may load")
        raise ModelNotFoundError(f"no model {model!r}; {self._choice()}", param="model")

    def _forbidden(self, model: str, reason: str) -> ForbiddenError:
        return ForbiddenError(f"model {model!r} {reason}; {self._choice()}", param="model")

    def _choice(self) -> str:
        """A sentence with the names that a request may use, and the settings that allow more."""
        known = ", ".join(dict.fromkeys([*self.configured, *ALIASES]))
        files = "set --models-dir to allow files"
        if self.folder is not None:
            files = "or a path relative to --models-dir"
        names = "or a name of the hub" if self.hub else "set --hub-models to allow names of the hub"
        return f"name one of {known}; {files}; {names}"


def models_folder(text: str) -> Path | None:
    """The absolute path of the setting `models_dir`; None if it is empty.

    Raises:
        ConfigError: there is no such folder.
    """
    if not text:
        return None
    path = user_path(text, "models_dir").absolute()
    if not path.is_dir():
        raise ConfigError(
            f"models_dir: {str(path)!r} is not a folder; name the folder with the models that"
            " requests may load",
            param="models_dir",
        )
    return path


def _is_model(path: Path) -> bool:
    """Whether there is a GGUF file, or a folder with config.json. No other file is ever opened."""
    try:
        return (path.suffix == _SUFFIX and path.is_file()) or (path / _CONFIG).is_file()
    except OSError:  # such as a name that is too long
        return False


def is_inside(file: Path, folder: Path) -> bool:
    """Whether `file` is in the folder, after all symbolic links are followed."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # RuntimeError: a circle of links, before Python 3.13
        return False


def _files(path: Path) -> Iterator[Path]:
    """All files that a reader may open for the model at `path`, and the folders that hold them."""
    if path.suffix == _SUFFIX and path.is_file():
        yield from (path.with_name(name) for name in part_names(path.name))
        return
    yield path
    for folder, folders, files in os.walk(path):  # it does not follow links
        yield from (Path(folder, name) for name in (*folders, *files))
