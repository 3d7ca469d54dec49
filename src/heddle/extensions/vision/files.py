"""Finds the eyes of an open model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import ConfigError, HeddleError
from heddle.extensions.vision.folder_eyes import folder_eyes
from heddle.extensions.vision.gguf_eyes import gguf_eyes
from heddle.extensions.vision.mmproj import mmproj_beside
from heddle.folders import user_path
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.weights.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


def eyes_of(checkpoint: Checkpoint, mmproj: str = "auto") -> EyesCheckpoint | None:
    """The eyes of an open model; None if it has none. They need the model open; close them, too.

    `mmproj` is the setting. A file that nobody has named, and that does not fit, is left alone.

    Raises:
        ConfigError: the setting names a file for a folder, which has its eyes itself.
        ModelSourceError: the file with the eyes cannot be read.
        ModelFileError: values or tensors are missing, or contradict one another.
        UnsupportedModelError: a value, or a type of tensors, is not supported.
    """
    if mmproj == "none":
        return None
    is_folder = isinstance(checkpoint, HuggingFaceCheckpoint)
    if mmproj != "auto":
        if is_folder:
            raise ConfigError(
                f"mmproj is {mmproj}, but {checkpoint.path} is a folder, which has its eyes itself;"
                " leave the setting out",
                param="mmproj",
            )
        return gguf_eyes(user_path(mmproj, "mmproj"), checkpoint)
    if isinstance(checkpoint, HuggingFaceCheckpoint):
        return folder_eyes(checkpoint)
    path = mmproj_beside(Path(checkpoint.path), checkpoint.architecture)
    if path is None:
        return None
    try:
        return gguf_eyes(path, checkpoint)
    except HeddleError as error:
        _log.warning("%s: it sees no pictures: %s", checkpoint.path, error.message)
        return None
