"""The reader of a path: a folder is Hugging Face's, a file is GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.gguf.outline import read_outline as read_gguf_outline
from heddle.weights.gguf.split import model_name
from heddle.weights.huggingface.base_folder import BaseFolder
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.huggingface.outline import read_outline as read_folder_outline

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.checkpoint import CheckArchitecture, Outline


def open_checkpoint(
    path: Path,
    base: Path | None = None,
    check: CheckArchitecture = lambda format, architecture: None,
) -> GGUFCheckpoint | HuggingFaceCheckpoint:
    """Open the model at `path`. A GGUF file takes what it lacks from the folder `base`.

    `check` may refuse the architecture before the rest is read.

    Raises:
        ModelSourceError: a file is missing or cannot be read.
        ModelFileError: a file is damaged.
        UnsupportedModelError: its format, or a version of it, is not supported.
    """
    if path.is_dir():
        return HuggingFaceCheckpoint.open(path, check)
    return GGUFCheckpoint.open(path, None if base is None else BaseFolder(base), check)


def read_outline(path: Path) -> Outline:
    """The outline of the model at `path`; raises as :func:`open_checkpoint`."""
    return read_folder_outline(path) if path.is_dir() else read_gguf_outline(path)


def name_of(path: Path) -> str:
    """The name of the model at `path`: that of the folder, or of the file without its suffix."""
    return path.name if path.is_dir() else model_name(path.name)
