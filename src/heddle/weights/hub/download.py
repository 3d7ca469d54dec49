"""Fetches several files of one commit at once, and reports the progress of each and of all."""

from __future__ import annotations

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from heddle.errors import ModelSourceError
from heddle.weights.hub.client import plain_errors
from heddle.weights.hub.transfer import StoppedError, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from heddle.hub_place import HubPlace
    from heddle.weights.hub.client import Listing
    from heddle.weights.hub.names import HubName
    from heddle.weights.hub.snapshot import Snapshot
    from heddle.weights.hub.transfer import CheckHead, HubFile
    from heddle.weights.progress import Progress

_AT_ONCE = 4
"""Files that are fetched side by side."""


def download(
    name: HubName,
    names: Iterable[str],
    listing: Listing,
    snapshot: Snapshot,
    place: HubPlace,
    progress: Progress,
    *,
    what: str = "",
    check_head: Mapping[str, CheckHead] = MappingProxyType({}),
) -> None:
    """Fetch the files `names` of a commit into its snapshot. Files that are there stay.

    Args:
        name: the model.
        names: the files.
        listing: all files of the commit.
        snapshot: the commit in the cache.
        place: the hub and its cache.
        progress: shows the download.
        what: says in the label of the progress which files of the model they are.
        check_head: checks of the first bytes of files, by name; see :func:`fetch`.

    Raises:
        ModelSourceError: the hub refuses, or the files cannot be stored.
        ChecksumError: the bytes of a file are not the ones that the hub has promised.
    """
    files = [listing.files[one] for one in names if not (snapshot.path / one).exists()]
    if not files:
        return
    with _storing(name, place, partial(_missing, files, snapshot)), plain_errors(name, place):
        snapshot.blob("").mkdir(parents=True, exist_ok=True)
        _check_space(name, files, snapshot, place)
        _download(name, files, snapshot, place, progress, what, check_head)


def remember(name: HubName, snapshot: Snapshot, place: HubPlace) -> None:
    """Make a snapshot the one that the cache has for the revision of `name`.

    Raises:
        ModelSourceError: it cannot be stored.
    """
    with _storing(name, place, lambda: 0):
        snapshot.remember(name.revision)


@contextmanager
def _storing(name: HubName, place: HubPlace, missing: Callable[[], int]) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(name, missing(), place) from error
        raise ModelSourceError(
            f"cannot store {name.served} in {place.cache}: {error.strerror or error}; make the"
            " folder writable, or set --hub-cache to another",
            param="model",
        ) from error


def _download(
    name: HubName,
    files: Sequence[HubFile],
    snapshot: Snapshot,
    place: HubPlace,
    progress: Progress,
    what: str,
    check_head: Mapping[str, CheckHead],
) -> None:
    source = (place.endpoint, name.repository, snapshot.commit)
    done, stop, lock = (
        dict.fromkeys((file.name for file in files), 0),
        threading.Event(),
        threading.Lock(),
    )

    def report(file: HubFile, here: int) -> None:
        with lock:
            done[file.name] = here
            progress.part(file.name, here, file.size)
            progress.update(sum(done.values()))

    def work(file: HubFile) -> None:
        blob, check = snapshot.blob(file.digest), check_head.get(file.name)
        fetch(file, blob, source, partial(report, file), stop, check)
        snapshot.link(file.name, file.digest)

    progress.start(f"downloading {name.served}{what}", sum(file.size for file in files))
    pool = ThreadPoolExecutor(_AT_ONCE, "heddle-download")
    try:
        for future in as_completed([pool.submit(work, file) for file in files]):
            if not isinstance(error := future.exception(), StoppedError | None):
                raise error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        progress.finish()


def _missing(files: Sequence[HubFile], snapshot: Snapshot) -> int:
    """Bytes that are not in the cache."""
    missing = 0
    for file in files:
        blob = snapshot.blob(file.digest)
        part = blob.with_name(f"{blob.name}.heddle")
        if not blob.exists():
            missing += file.size - (part.stat().st_size if part.exists() else 0)
    return missing


def _check_space(
    name: HubName, files: Sequence[HubFile], snapshot: Snapshot, place: HubPlace
) -> None:
    missing = _missing(files, snapshot)
    if missing > shutil.disk_usage(place.cache).free:
        raise _no_space(name, missing, place)


def _no_space(name: HubName, missing: int, place: HubPlace) -> ModelSourceError:
    free = shutil.disk_usage(place.cache).free
    return ModelSourceError(
        f"cannot fetch {name.served}: {missing / 1e6:,.0f} MB are missing, and the disk of"
        f" {place.cache} has {free / 1e6:,.0f} MB free; delete models (`heddle list`, `heddle rm`),"
        " or set --hub-cache to a folder on a larger disk",
        param="model",
    )
