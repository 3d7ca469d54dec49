"""Reads an adapter's files: a folder of PEFT, or a GGUF file."""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelSourceError
from heddle.extensions.lora.fitting import fit, nbytes_of
from heddle.extensions.lora.gguf_file import GGUFAdapter
from heddle.extensions.lora.naming import naming_of_file, naming_of_folder
from heddle.extensions.lora.peft_folder import WEIGHTS, PeftFolder, pickled
from heddle.extensions.lora.peft_scales import CONFIG
from heddle.extensions.lora.wholes import wholes_of
from heddle.folders import user_path
from heddle.hub_place import hub_place
from heddle.weights.hub.names import parse
from heddle.weights.low_rank import LowRank, Whole
from heddle.weights.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from heddle.hub_place import HubPlace
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import Change

_log = logging.getLogger(__name__)

_PLACES = 3
"""Last parts of a model's path that may have its name: the folder of the hub's cache is the third.
"""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """What an adapter's files hold, checked against a model.

    Attributes:
        changes: by the canonical name of the changed matrix without `.weight`
            (`heddle.weights.checkpoint` lists them). A change of `output` is one of the product
            that makes logits, also where the embedding is the output matrix.
        digest: SHA-256 of the changes, in hexadecimal. Files with equal changes have equal ones.
        nbytes: bytes of all changes in their types.
        rank: the largest rank.
        label: name for people: that of the folder, or of the file without its suffix.
    """

    changes: Mapping[str, Change]
    digest: str
    nbytes: int
    rank: int
    label: str


def read_adapter(
    source: str | Path, base: Checkpoint, place: HubPlace | None = None
) -> AdapterFile:
    """The changes that an adapter makes in the model `base`.

    `source` is a folder as PEFT writes it or the `adapter_model.safetensors` in it, a GGUF file, or
    the name of a repository of the hub with the files of PEFT, which are fetched. `place` is the
    hub and its cache; None: as the variables of `huggingface_hub` say.

    Raises:
        ModelSourceError: there is no such adapter, or it cannot be read or fetched.
        ModelFileError: a file is damaged, or does not fit the model.
        UnsupportedModelError: the adapter is of a kind that is not supported.
    """
    path = _located(source, place or hub_place())
    with _open(path) as adapter:
        _compare_names(adapter.base_name, path, base)
        if isinstance(adapter, GGUFAdapter):
            naming = naming_of_file(adapter.architecture, base)
        else:
            naming = naming_of_folder(adapter, base)
        changes = fit(adapter.pairs, adapter.scale, naming, base)
        changes |= wholes_of(adapter.wholes, changes, naming, base)
        adapter.check_unchanged()
    low_ranks = [one for one in changes.values() if isinstance(one, LowRank)]
    has_wholes = len(low_ranks) < len(changes)
    if not has_wholes and not any(one.b.any() and one.a.any() for one in low_ranks):
        _log.warning("%s changes nothing: its products are all 0", path)
    return AdapterFile(
        changes,
        digest_of(changes),
        nbytes_of(changes),
        max((one.rank for one in low_ranks), default=0),
        path.name if path.is_dir() else path.stem,
    )


def digest_of(changes: Mapping[str, Change]) -> str:
    """SHA-256 of names, types, shapes, scales and values of changes, in order of names."""
    found = hashlib.sha256()
    for name in sorted(changes):
        one = changes[name]
        if isinstance(one, Whole):
            arrays = [one.values]
            found.update(f"{name} {one.type.name} {one.values.shape} whole\n".encode())
        else:
            arrays = [one.a, one.b] if one.gains is None else [one.a, one.b, one.gains]
            scale = float(one.scale).hex()
            found.update(f"{name} {one.type.name} {one.a.shape} {one.b.shape} {scale}\n".encode())
        for values in arrays:
            found.update(np.ascontiguousarray(values, "<f4").data)
    return found.hexdigest()


def _open(path: Path) -> PeftFolder | GGUFAdapter:
    return PeftFolder(path) if path.is_dir() else GGUFAdapter(path)


def _located(source: str | Path, place: HubPlace) -> Path:
    """The folder of PEFT or the GGUF file that a source names. Fetches one of the hub."""
    path = user_path(str(source), "adapter").absolute()
    if path.is_dir():
        return _checked(path)
    if path.name == WEIGHTS and path.is_file():
        return _checked(path.parent)
    if path.suffix == ".bin" and path.is_file():
        raise pickled(path)
    if path.suffix == ".safetensors" and path.is_file():
        raise ModelSourceError(
            f"{path}: give the folder that has {CONFIG} and {WEIGHTS}", param="adapter"
        )
    if path.is_file():
        return path
    fetched = _fetched(source, place) if isinstance(source, str) and not path.exists() else None
    if fetched is None:
        raise ModelSourceError(
            f"adapter {str(source)!r}: {path} does not exist or is no file; give a folder with"
            f" {CONFIG} and {WEIGHTS}, a .gguf file, or ORG/NAME of the Hugging Face hub",
            param="adapter",
        )
    return fetched


def _checked(folder: Path) -> Path:
    if not (folder / CONFIG).is_file():
        is_model = (folder / "config.json").is_file()
        raise ModelSourceError(
            f"{folder} has no {CONFIG}"
            + ("; it is the folder of a model, not of an adapter" if is_model else "")
            + f"; give a folder with {CONFIG} and {WEIGHTS}, or a .gguf file",
            param="adapter",
        )
    return folder


def _fetched(source: str, place: HubPlace) -> Path | None:
    """The folder of an adapter of the hub; None if `source` is no name of the hub."""
    name = parse(source)
    if name is None:
        return None
    from heddle.weights.hub.source import fetch_some  # its library takes time to import

    folder = fetch_some(name, (CONFIG, WEIGHTS), place, Silent())
    if folder is None:
        raise ModelSourceError(
            f"{name.served} has no {CONFIG} and {WEIGHTS}, or they are not in the cache and nothing"
            " may be fetched (--offline, HF_HUB_OFFLINE)",
            param="adapter",
        )
    return _checked(folder)


def _compare_names(named: str, path: Path, base: Checkpoint) -> None:
    """Warn if the adapter names another model. Names of copies differ, so it is no error."""
    short = _letters(named.rstrip("/").rpartition("/")[2])
    if short and short not in _letters("/".join(base.path.parts[-_PLACES:])):
        _log.warning("%s was trained for %s; the model is %s", path, named, base.path)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
