"""Finds a model of the hub: in the cache, or by fetching the files that it needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import ModelCard

from heddle.doors import extensions, refer
from heddle.errors import HeddleError, ModelSourceError, UnsupportedModelError
from heddle.weights.gguf.checkpoint import lacking_parts
from heddle.weights.gguf.file import architecture_in
from heddle.weights.hub.choice import CARD, CONFIG, INDEX, TEMPLATES, TOKENIZER, choose, weights_of
from heddle.weights.hub.client import UnreachableError, list_files
from heddle.weights.hub.download import download, remember
from heddle.weights.hub.names import PREFIX, HubName, parse
from heddle.weights.hub.snapshot import Snapshot, is_commit
from heddle.weights.huggingface.checkpoint import check_config
from heddle.weights.huggingface.json_files import read_optional_json
from heddle.weights.huggingface.quantised import check_quantisation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.hub_place import HubPlace
    from heddle.weights.checkpoint import CheckArchitecture
    from heddle.weights.hub.client import Listing
    from heddle.weights.progress import Progress

_LARGEST_CARD = 1 << 17
"""Most bytes of a model card. A YAML parser may take 10 s for them."""


def find(
    name: HubName, place: HubPlace, progress: Progress, check: CheckArchitecture
) -> tuple[Path, Path | None]:
    """The model's folder, or the first file of a GGUF model; and its base folder.

    The base folder has the tokenizer or the chat template that a GGUF file lacks; None without.
    The revision is looked up each time. If the hub does not answer, the copy in the cache serves.
    `check` gets the architecture before the weights are fetched.

    Raises:
        ModelSourceError: there is no such model, it cannot be fetched or stored, or it is not in
            the cache and `place` is offline.
        UnsupportedModelError: its weights are pickles, or `check` refuses its architecture.
        ChecksumError: the bytes of a file are not the ones that the hub has promised.
    """
    snapshot = Snapshot.cached(place.cache / name.folder, name.revision)
    path = None if snapshot is None else _complete(name, snapshot)
    listing = None
    if path is None or not (place.offline or is_commit(name.revision)):
        listing = _ask(name, place, progress, is_cached=path is not None)
    if listing is not None:
        snapshot = Snapshot(place.cache / name.folder, listing.commit)
        path = _fetch(name, listing, snapshot, place, progress, check)
    assert snapshot is not None
    assert path is not None
    return path, _base(name, path, listing, snapshot, place, progress)


def _ask(name: HubName, place: HubPlace, progress: Progress, *, is_cached: bool) -> Listing | None:
    """The hub's list of files; None if the hub does not answer and the cache has the model."""
    if place.offline:
        raise ModelSourceError(
            f"{name.served} is not in {place.cache}, or only in part, and the hub may not be asked"
            " (--offline, HF_HUB_OFFLINE); see `heddle list`, or fetch it first: heddle pull"
            f" {name.served}",
            param="model",
        )
    try:
        return list_files(name, place)
    except UnreachableError as error:
        if not is_cached:
            raise
        progress.note(f"{error.message}. The copy in the cache is used")
        return None


def _complete(name: HubName, snapshot: Snapshot) -> Path | None:
    """The model's path in a snapshot that has all its files; None if one is missing."""
    files = snapshot.files()
    try:
        choice = choose(name, files)
        if not choice.is_folder:
            return snapshot.path / choice.first[0]
        weights_of(name, _places(snapshot), files)
        return snapshot.path
    except HeddleError:
        return None


def _places(snapshot: Snapshot) -> list[str]:
    """The files that the index of a folder names."""
    places = read_optional_json(snapshot.path / INDEX).get("weight_map")
    return [str(place) for place in places.values()] if isinstance(places, dict) else []


def _fetch(
    name: HubName,
    listing: Listing,
    snapshot: Snapshot,
    place: HubPlace,
    progress: Progress,
    check: CheckArchitecture,
) -> Path:
    """Fetch what is missing. Returns the model's path."""
    choice = choose(name, listing.files)
    fetch = partial(download, name, listing=listing, snapshot=snapshot, place=place)
    if choice.is_folder:
        fetch([CONFIG], progress=progress, what=": configuration")
        check_quantisation(check_config(snapshot.path, check, name.served))
        fetch(choice.first, progress=progress, what=": tokenizer")
        weights = weights_of(name, _places(snapshot), listing.files)
        fetch(weights, progress=progress, what=": weights")
    else:
        first = listing.files[choice.first[0]]

        def check_head(head: bytes) -> None:
            architecture = architecture_in(head, Path(first.name), first.size)
            try:
                if architecture is not None:
                    check("gguf", architecture)
            except UnsupportedModelError as error:
                message = f"{name.served}: {error.message}"
                raise UnsupportedModelError(message, param=error.param) from None

        fetch(choice.first, progress=progress, check_head={first.name: check_head})
        for one in (one for extension in extensions().values() for one in extension.companions):
            beside = refer(one)(snapshot.path / first.name, first.name, listing.files)
            fetch(beside, progress=progress, what=": files beside it")
    remember(name, snapshot, place)
    return snapshot.path if choice.is_folder else snapshot.path / choice.first[0]


# --- what a GGUF file lacks ----------------------------------------------------------------------


def _base(
    name: HubName,
    path: Path,
    listing: Listing | None,
    snapshot: Snapshot,
    place: HubPlace,
    progress: Progress,
) -> Path | None:
    """A folder with what the GGUF file at `path` lacks, from its base repository; None without."""
    lacking = () if path.is_dir() else lacking_parts(path)
    if not lacking:
        return None
    card = None if listing is None else listing.files.get(CARD)
    if listing is not None and card is not None and card.size <= _LARGEST_CARD:
        download(name, (CARD,), listing, snapshot, place, progress)
    base = _base_name(name, snapshot.path / CARD)
    if base is None:
        return None
    wanted = TEMPLATES if lacking == ("chat template",) else (*TEMPLATES, TOKENIZER, CONFIG)
    try:
        return fetch_some(base, wanted, place, progress)
    except ModelSourceError as error:
        progress.note(f"{path.name} lacks a {' and a '.join(lacking)}, and {error.message}")
        return None


def fetch_some(
    name: HubName, wanted: Iterable[str], place: HubPlace, progress: Progress
) -> Path | None:
    """Fetch the files `wanted` that a repository has. Returns their folder; None without any."""
    snapshot = Snapshot.cached(place.cache / name.folder, name.revision)
    if snapshot is not None and not {*wanted}.isdisjoint(snapshot.files()):
        return snapshot.path
    if place.offline:
        return None
    listing = list_files(name, place)
    found = [file for file in wanted if file in listing.files]
    snapshot = Snapshot(place.cache / name.folder, listing.commit)
    download(name, found, listing, snapshot, place, progress)
    if found:
        remember(name, snapshot, place)
    return snapshot.path if found else None


def _base_name(name: HubName, card: Path) -> HubName | None:
    """The repository that a model was made from: as its card says, else by its name."""
    named = _base_in(card)
    if named is None:
        organisation, _, short = name.repository.rpartition("/")
        stem = short.removesuffix("-GGUF").removesuffix("-gguf")
        named = f"{organisation}/{stem}" if organisation and stem != short else ""
    base = parse(named) if "/" in named and not named.startswith(PREFIX) else None
    return base if base is not None and base.repository != name.repository else None


def _base_in(card: Path) -> str | None:
    """The base that a card names; None without. Any text may be in a card, and none is needed."""
    if not card.is_file() or card.stat().st_size > _LARGEST_CARD:
        return None
    try:
        named = ModelCard.load(card, ignore_metadata_errors=True).data.get("base_model")
    except Exception:  # of the library and of its YAML parser, which do not name their errors
        return None
    named = named[0] if isinstance(named, list) and named else named
    return named if isinstance(named, str) else None
