"""Fetches models for clients of a server, describes their files, and deletes fetched models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heddle.errors import ForbiddenError, HeddleError, ModelLoadedError, ModelNotFoundError
from heddle.folders import cache_home
from heddle.hub_place import hub_place
from heddle.loading.find import find_model
from heddle.weights.cached import remove
from heddle.weights.sources import is_fetched

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from heddle.hosting.registry import Registry
    from heddle.weights.progress import Progress


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts that the files of a model give without a load.

    Attributes:
        path: the file or folder.
        architecture: name of the architecture; empty if the files do not say it.
        parameters: number of weights.
        quantisation: the tensor type of most bytes.
        created: when the path was written, in seconds since 1970.
        sampling: sampling parameters that the files or the catalogue recommend.
        metadata: all metadata of the files, by their names.
        generates: whether the model makes text; an encoder does not.
    """

    path: Path
    architecture: str
    parameters: int
    quantisation: str
    created: int
    sampling: Mapping[str, object]
    metadata: Mapping[str, object]
    generates: bool = True


def facts_of(registry: Registry, name: str) -> FileFacts | None:
    """The facts of a known model's files; None if the files are missing here or not readable."""
    from heddle.weights.formats import read_outline
    from heddle.weights.inspect import describe

    place = replace(hub_place(registry.engine_config), offline=True)
    try:
        found = find_model(registry.source_of(name), place=place)
        path = found.path
        read, created = describe(path, sampling=found.sampling), int(path.stat().st_mtime)
        generates = read_outline(path).hyperparameters.get("causal", True) is True
    except (HeddleError, OSError):
        return None
    kind = read.tensors[0].type if read.tensors else ""
    architecture = read.architecture or ""
    return FileFacts(
        *(path, architecture, read.parameters, kind, created, read.sampling, read.metadata),
        generates=generates,
    )


def fetch(registry: Registry, source: str, progress: Progress) -> str:
    """Fetch the files of a model without loading it, and make it known. Returns its name.

    `source` is a result of `Registry.source_of`.

    Raises:
        ModelSourceError: there is no such model, or it cannot be fetched.
        UnsupportedModelError: Heddle cannot run it.
    """
    name = find_model(source, progress, hub_place(registry.engine_config)).name
    with suppress(ModelLoadedError):  # it is known already
        registry.add(source, name=name)
    return name


def delete(registry: Registry, name: str) -> None:
    """Unload a fetched model, forget it, and delete its files from their cache.

    Raises:
        ModelNotFoundError: no model has this name.
        ModelUnavailableError: it loads or unloads.
        ForbiddenError: its files are not in a cache.
        ModelSourceError: its files are gone already.
    """
    source = registry.source_of(name)
    if not is_fetched(source):
        raise ForbiddenError(
            f"model {name!r} is no fetched model, and only fetched models can be deleted; delete"
            " its files yourself",
            param="model",
        )
    with suppress(ModelNotFoundError):  # it is not loaded
        registry.unload(name)
    remove(source, cache_home(), hub_place(registry.engine_config))
    if name in registry:
        registry.forget(name)
