"""Chooses the file with the eyes of a GGUF model, on disk or in a repository."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from heddle.extensions.vision.gguf_eyes import TEXTS
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.gguf.names import ARCHITECTURE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log = logging.getLogger(__name__)

_MARK = "mmproj"
_TYPES = ("f16", "bf16", "q8_0", "f32")
"""Types of tensors in order of preference. Eyes are small, and F16 loses nothing that matters."""
_TYPE = re.compile(r"(?<![a-z0-9])(bf16|f16|f32|i?q[0-9]_[a-z0-9_]+)(?![a-z0-9])")


def mmproj_among(names: Iterable[str]) -> tuple[str, ...]:
    """The files with eyes among files of one folder, best first; none if they are of several.

    Files that differ only in their type have the same eyes.
    """
    found = [name for name in names if is_mmproj(name)]
    if len({_TYPE.sub("", name.lower()) for name in found}) > 1:
        return ()
    return tuple(sorted(found, key=lambda name: (_preference(name), name)))


def is_mmproj(name: str) -> bool:
    """Whether a file has eyes, by its name."""
    base = name.rpartition("/")[2].lower()
    return _MARK in base and base.endswith(".gguf")


def mmproj_beside(model: Path, architecture: str) -> Path | None:
    """The file with the eyes of the GGUF model at `model`; None without one."""
    if architecture not in TEXTS:
        return None
    names = [one.name for one in model.parent.iterdir()]
    found = mmproj_among(names)
    if not found and (several := sorted(filter(is_mmproj, names))):
        _log.warning(
            "%s: it sees no pictures, because several files beside it have eyes: %s. Name one with"
            " --mmproj",
            *(model, ", ".join(several[:8])),
        )
    return model.parent / found[0] if found else None


def fetched_beside(path: Path, first: str, files: Iterable[str]) -> tuple[str, ...]:
    """The files that a model of the hub is fetched with.

    Args:
        path: the model's first file on disk.
        first: its name in the repository.
        files: names of all files of the repository.
    """
    folder = first.rpartition("/")[0]
    found = mmproj_among(name for name in files if name.rpartition("/")[0] == folder)
    if not found:
        return ()
    with GGUFFile.open(path) as file:
        return found[:1] if file.metadata.get(ARCHITECTURE) in TEXTS else ()


def _preference(name: str) -> int:
    found = _TYPE.search(name.lower())
    return _TYPES.index(found[1]) if found and found[1] in _TYPES else len(_TYPES)
