"""A GGUF file, or all its parts, as a checkpoint: keys and tensors under canonical names."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from heddle.closing import Closing
from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace, Hyperparameters, TensorInfo
from heddle.weights.gguf import names
from heddle.weights.gguf.generation import read_recommended
from heddle.weights.gguf.split import open_parts
from heddle.weights.gguf.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import TokenizerSpec
    from heddle.weights.files import FileStamp
    from heddle.weights.generation import Recommended
    from heddle.weights.gguf.file import GGUFFile


class GGUFCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`.

    Attributes:
        metadata: all metadata of the model, by key.
    """

    format = "gguf"

    def __init__(self, files: Sequence[GGUFFile]) -> None:
        """`files` are all parts; the first has the metadata.

        Raises ModelFileError: the first part does not name the architecture.
        """
        self._files = files
        self.path = files[0].path
        self.metadata = metadata = files[0].metadata
        self.architecture = _text(metadata, names.ARCHITECTURE)
        self.hyperparameters = hyperparameters_of(metadata, self.architecture)
        _agree_on_vocabulary(self.hyperparameters, metadata.get(names.TOKENS))
        self._file_of = {name: file for file in files for name in file.tensors}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                canonical: TensorInfo(
                    canonical,
                    _shape(canonical, stored.shape),
                    stored.type,
                    stored.nbytes,
                    name,
                    FilePlace(file.descriptor, stored.offset),
                )
                for name, file in self._file_of.items()
                for stored in (file.tensors[name],)
                for canonical in (names.TENSORS.canonical(name) or name,)
            }
        )
        # A tensor may have the canonical name of another tensor as its own name.
        if len(self.tensors) < len(self._file_of):
            raise ModelFileError(f"{self.path}: two tensors have one name", field="tensors")
        template = names.CHAT_TEMPLATE in metadata
        self.chat_template = _text(metadata, names.CHAT_TEMPLATE) if template else None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the file, and all other parts of a split one. Raises as :func:`open_parts`."""
        return cls(open_parts(Path(path)))

    def label(self, name: str) -> str:
        return names.TENSORS.stored(name)

    def tokenizer(self) -> TokenizerSpec:
        return read_tokenizer(self.metadata)

    def recommended(self) -> Recommended:
        return read_recommended(self.metadata, self.path)

    def read(self, name: str) -> NDArray[np.uint8]:
        label = self.label(name)
        return self._file_of.get(label, self._files[0]).data(label)

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return {file.path: file.stamp for file in self._files}

    def check_unchanged(self) -> None:
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
            file.close()


def _shape(canonical: str, stored: tuple[int, ...]) -> tuple[int, ...]:
    """The canonical shape. The gate of a shared expert, a matrix of one row, is stored as a row."""
    is_gate = canonical.endswith(".mlp.shared_gate.weight") and len(stored) == 1
    return (1, *stored) if is_gate else stored


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ModelFileError(f"{key} must be a string, got {value!r}", field=key)
    return value


_POOLING = {1: "mean", 3: "last"}
"""Values of `pooling_type` that decoders use. The others, first token and ranking head, are not for
embeddings of decoders."""


_SCORINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
"""Values of `expert_gating_func` (llama.cpp, `llama_expert_gating_func_type`)."""


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
    scoring = values.get("expert_scoring")
    if isinstance(scoring, int):
        values["expert_scoring"] = _SCORINGS.get(scoring, scoring)
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
