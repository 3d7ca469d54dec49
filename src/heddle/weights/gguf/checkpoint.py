"""A GGUF file as a checkpoint, with its keys and tensors under canonical names."""

from __future__ import annotations

from collections.abc import Sized
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from heddle.closing import Closing
from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace, Hyperparameters, TensorInfo
from heddle.weights.gguf import names
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.gguf.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import TokenizerSpec
    from heddle.weights.files import FileStamp


class GGUFCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`."""

    format = "gguf"

    def __init__(self, file: GGUFFile) -> None:
        """Raises ModelFileError: the file does not name its architecture."""
        self.file = file
        self.path = file.path
        self.architecture = _text(file.metadata, names.ARCHITECTURE)
        self.hyperparameters = hyperparameters_of(file.metadata, self.architecture)
        _agree_on_vocabulary(self.hyperparameters, file.metadata.get(names.TOKENS))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                canonical: TensorInfo(
                    canonical,
                    stored.shape,
                    stored.type,
                    stored.nbytes,
                    name,
                    FilePlace(file.descriptor, stored.offset),
                )
                for name, stored in file.tensors.items()
                for canonical in (names.TENSORS.canonical(name) or name,)
            }
        )
        # A tensor may have the canonical name of another tensor as its own name.
        if len(self.tensors) < len(file.tensors):
            raise ModelFileError(f"{self.path}: two tensors have one name", field="tensors")
        template = names.CHAT_TEMPLATE in file.metadata
        self.chat_template = _text(file.metadata, names.CHAT_TEMPLATE) if template else None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the file. Raises the errors of :meth:`GGUFFile.open`."""
        return cls(GGUFFile.open(path))

    def label(self, name: str) -> str:
        return names.TENSORS.stored(name)

    def tokenizer(self) -> TokenizerSpec:
        return read_tokenizer(self.file.metadata)

    def read(self, name: str) -> NDArray[np.uint8]:
        return self.file.data(self.label(name))

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return {self.file.path: self.file.stamp}

    def check_unchanged(self) -> None:
        self.file.check_unchanged()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.file.close()


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ModelFileError(f"{key} must be a string, got {value!r}", field=key)
    return value


_POOLING = {1: "mean", 3: "last"}
"""Values of `pooling_type` that decoders use. The others, first token and ranking head, are not for
embeddings of decoders."""


def hyperparameters_of(metadata: Mapping[str, object], architecture: str) -> Hyperparameters:
    """The hyperparameters in the metadata, under canonical names, unchecked."""

    def label(name: str) -> str:
        return f"{architecture}.{names.HYPERPARAMETERS.get(name, name)}"

    keys = {name: label(name) for name in names.HYPERPARAMETERS}
    values = {name: metadata[key] for name, key in keys.items() if key in metadata}
    values["rope.interleaved"] = architecture in names.INTERLEAVED
    tokens = metadata.get(names.TOKENS)
    if isinstance(tokens, Sized):
        values.setdefault("vocabulary", len(tokens))
    pooling = values.pop("pooling", None)
    if isinstance(pooling, int) and pooling in _POOLING:
        values["pooling"] = _POOLING[pooling]
    return Hyperparameters(values, label)


def _agree_on_vocabulary(hyperparameters: Hyperparameters, tokens: object) -> None:
    """Check that the model and the tokenizer have the same number of tokens.

    If the model sampled a token that the tokenizer lacks, the output could not continue.
    """
    size = hyperparameters.get("vocabulary")
    if isinstance(tokens, Sized) and isinstance(size, int) and size != len(tokens):
        hyperparameters.fail(
            "vocabulary",
            f"is {size}, but the tokenizer has {len(tokens)} tokens; the file is damaged or was"
            " converted wrongly, fetch another file",
        )
