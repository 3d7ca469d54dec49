"""Models in the caches: which there are, and their removal.

The caches are the folder of models from wheels (`sources.py`) and that of the hub (`hub/`). Other
programs use the hub's cache too. Models there that Heddle cannot load are left out.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ModelSourceError
from heddle.weights.hub.choice import model_files
from heddle.weights.hub.names import parse
from heddle.weights.hub.snapshot import Snapshot, snapshots
from heddle.weights.sources import lock, recipe_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from heddle.hub_place import HubPlace
    from heddle.weights.hub.names import HubName

_UNFINISHED = (".heddle", ".incomplete")
"""Ends of the names of files that a download, ours or of `huggingface_hub`, has left."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in a cache.

    Attributes:
        name: the name to type for it.
        kind: gguf, safetensors, or unfinished (parts of broken downloads of a repository).
        bytes: size of its files.
        used: when one of them was last read, in seconds since 1970, as the file system says.
        path: where it is.
    """

    name: str
    kind: str
    bytes: int
    used: float
    path: Path


def cached_models(home: Path, place: HubPlace) -> list[CachedModel]:
    """The models in the caches, the last used first.

    Args:
        home: the cache folder for wheels; see :func:`heddle.folders.cache_home`.
        place: the hub's cache.
    """
    found = [*_packaged(home / "models"), *_of_hub(place.cache)]
    return sorted(found, key=lambda model: (-model.used, model.name))


def remove(name: str, home: Path, place: HubPlace) -> int:
    """Delete a model from its cache. Returns the freed bytes.

    A name of the hub with a quant means the files of that model in all revisions. Without a quant
    it means the whole repository with all revisions.

    Raises:
        ModelSourceError: the caches have no such model.
    """
    recipe = recipe_of(name)
    if recipe is not None:
        folder, models = home / "models" / recipe.name, home / "models"
        if folder.is_dir():
            with lock(models, recipe.name, wait=True):
                freed = _size(folder.rglob("*"))
                shutil.rmtree(folder)
            return freed
    elif (on_hub := parse(name)) is not None and (place.cache / on_hub.folder).is_dir():
        freed = _remove_from_hub(on_hub, place.cache / on_hub.folder)
        if freed:
            return freed
    known = ", ".join(model.name for model in cached_models(home, place))
    raise ModelSourceError(
        f"{name} is not in the caches; they have {known or 'no models'}", param="model"
    )


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())


def _described(name: str, kind: str, files: Sequence[Path], path: Path) -> CachedModel:
    states = [file.stat() for file in files]
    size, used = sum(one.st_size for one in states), max(one.st_atime for one in states)
    return CachedModel(name, kind, size, used, path)


def _packaged(models: Path) -> Iterator[CachedModel]:
    for path in sorted(models.glob("*/*.gguf")):
        folder = path.parent.name
        name = f"pypi:{folder.removeprefix('pypi-')}" if folder.startswith("pypi-") else folder
        yield _described(name, "gguf", [path], path)


# --- the hub's cache -----------------------------------------------------------------------------


def _of_hub(cache: Path) -> Iterator[CachedModel]:
    for folder in sorted(cache.glob("models--*")):
        repository = folder.name.removeprefix("models--").replace("--", "/")
        for revision, snapshot in snapshots(folder):
            yield from _of_snapshot(repository, revision, snapshot)
        parts = [path for path in folder.glob("blobs/*") if path.suffix in _UNFINISHED]
        if parts:
            yield _described(repository, "unfinished", parts, folder)


def _of_snapshot(repository: str, revision: str, snapshot: Snapshot) -> Iterator[CachedModel]:
    at = "" if revision == "main" else f"@{revision}"
    for quant, files in model_files(snapshot.files()):
        paths = [snapshot.path / file for file in files]
        if quant is None:
            yield _described(f"{repository}{at}", "safetensors", paths, snapshot.path)
        else:
            yield _described(f"{repository}{at}:{quant}", "gguf", paths, paths[0])


def _remove_from_hub(name: HubName, folder: Path) -> int:
    before = _size(folder.glob("blobs/*"))
    if name.quant is None:
        shutil.rmtree(folder)
        shutil.rmtree(folder.parent / ".locks" / folder.name, ignore_errors=True)
        return before
    for _, snapshot in snapshots(folder):
        for quant, files in model_files(snapshot.files()):
            if quant is not None and quant.lower() == name.quant.lower():
                for file in files:
                    (snapshot.path / file).unlink()
    links = (path for path in folder.glob("snapshots/**/*") if path.is_symlink())
    used = {path.resolve() for path in links}
    for blob in folder.glob("blobs/*"):
        if blob.resolve() not in used and blob.suffix not in _UNFINISHED:
            blob.unlink()
    return before - _size(folder.glob("blobs/*"))
