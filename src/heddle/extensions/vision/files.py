"""Finds the eyes of an open model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.vision.folder_eyes import folder_eyes
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint

if TYPE_CHECKING:
    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.weights.checkpoint import Checkpoint


def eyes_of(checkpoint: Checkpoint) -> EyesCheckpoint | None:
    """The eyes of an open model, valid as long as it is; None if it has none.

    Raises:
        ModelFileError: values or tensors are missing, or contradict one another.
        UnsupportedModelError: a value, or a type of tensors, is not supported.
    """
    if isinstance(checkpoint, HuggingFaceCheckpoint):
        return folder_eyes(checkpoint)
    return None
