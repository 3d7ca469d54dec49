"""Reads the outline of a Hugging Face folder, for `heddle inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.checkpoint import Outline
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.huggingface.tokenizer import end_tokens_of

if TYPE_CHECKING:
    from pathlib import Path


def read_outline(path: Path) -> Outline:
    """The outline of the folder at `path`; raises as :meth:`HuggingFaceCheckpoint.open`."""
    with HuggingFaceCheckpoint.open(path) as checkpoint:
        name = checkpoint.config.get("_name_or_path")
        return Outline(
            format="safetensors",
            file_bytes=sum(stamp.size for stamp in checkpoint.stamps.values()),
            architecture=checkpoint.architecture,
            name=name if isinstance(name, str) and name else None,
            hyperparameters=checkpoint.hyperparameters,
            tensors=tuple((t.type, t.shape, t.nbytes) for t in checkpoint.tensors.values()),
            sampling=checkpoint.recommended().values,
            end_tokens=end_tokens_of(path, checkpoint.config),
            metadata=checkpoint.config,
        )
