"""A GGUF file, or all its parts, as a checkpoint: keys and tensors under canonical names."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace, TensorInfo
from heddle.weights.fused import take_apart
from heddle.weights.gguf import names
from heddle.weights.gguf.experts import with_stacks
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.gguf.generation import read_recommended
from heddle.weights.gguf.hyperparameters import ANY_FILE, hyperparameters_of
from heddle.weights.gguf.split import open_parts
from heddle.weights.gguf.tokenizer import TOKENIZER_MODEL, read_tokenizer
from heddle.weights.heads import part_of_heads
from heddle.weights.hyperparameters import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import CheckArchitecture, TokenizerSpec
    from heddle.weights.files import FileStamp
    from heddle.weights.generation import Recommended
    from heddle.weights.hyperparameters import Hyperparameters


_VECTORS = (
    *(".mixer.norm.weight", ".decay_rates.weight", ".mixer.skip.weight"),
    ".time.shares.weight",
)
_FILTERS = tuple(f".attention.{part}_conv.weight" for part in ("q", "k", "v"))


class Base(Protocol):
    """A source of the parts that a GGUF file may lack."""

    def chat_template(self) -> str | None:
        """The chat template; None without one."""
        ...

    def tokenizer(self, vocabulary: object) -> TokenizerSpec:
        """The tokenizer of a model of `vocabulary` tokens."""
        ...


def lacking_parts(path: Path) -> tuple[str, ...]:
    """Names of what the GGUF file at `path` lacks of a tokenizer and a chat template.

    Raises:
        ModelSourceError, ModelFileError, UnsupportedModelError: as :meth:`GGUFFile.open`.
    """
    needed = {TOKENIZER_MODEL: "tokenizer", names.CHAT_TEMPLATE: "chat template"}
    with GGUFFile.open(path) as file:
        return tuple(part for key, part in needed.items() if key not in file.metadata)


class GGUFCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`.

    Attributes:
        metadata: all metadata of the model, by key.
    """

    format = "gguf"
    prompts: Mapping[str, str] = MappingProxyType({})
    default_prompt = ""

    def __init__(
        self,
        files: Sequence[GGUFFile],
        base: Base | None = None,
        check: CheckArchitecture = lambda format, architecture: None,
    ) -> None:
        """`files` are all parts; the first has the metadata. `base` has what they lack.

        `check` may refuse the architecture.

        Raises ModelFileError: the first part does not name the architecture.
        """
        self._files = files
        self._base = base
        self.path = files[0].path
        self.metadata = metadata = files[0].metadata
        self.architecture = _text(metadata, names.ARCHITECTURE)
        check(self.format, self.architecture)  # first: nothing else in the file may make sense
        shapes = [one.shape for file in files for one in file.tensors.values()]
        bounds = Bounds.of(shapes) if shapes else ANY_FILE
        self.hyperparameters = hyperparameters_of(metadata, self.architecture, bounds)
        _agree_on_vocabulary(self.hyperparameters, metadata.get(names.TOKENS))
        self._file_of = {name: file for file in files for name in file.tensors}
        self._names = names.tensor_names(self.architecture)
        stored = self._stored_tensors()
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            take_apart(stored, self.hyperparameters)
        )
        template = names.CHAT_TEMPLATE in metadata
        self.chat_template = _text(metadata, names.CHAT_TEMPLATE) if template else None
        if base is not None and not template:
            self.chat_template = base.chat_template()

    @classmethod
    def open(
        cls,
        path: str | Path,
        base: Base | None = None,
        check: CheckArchitecture = lambda format, architecture: None,
    ) -> Self:
        """Open the file, and all other parts of a split one. Raises as :func:`open_parts`."""
        return cls(open_parts(Path(path)), base, check)

    def label(self, name: str) -> str:
        return self._names.stored(name)

    def tokenizer(self) -> TokenizerSpec:
        if self._base is not None and TOKENIZER_MODEL not in self.metadata:
            return self._base.tokenizer(self.hyperparameters.get("vocabulary"))
        return read_tokenizer(self.metadata)

    def recommended(self) -> Recommended:
        return read_recommended(self.metadata, self.path)

    def read(self, name: str, start: int = 0, size: int | None = None) -> NDArray[np.uint8]:
        return self._whole(name)[start : None if size is None else start + size]

    def reads_parts(self, name: str) -> bool:
        return self.tensors[name].has_place

    def _whole(self, name: str) -> NDArray[np.uint8]:
        tensor = self.tensors.get(name)
        label = self.label(name) if tensor is None else tensor.label
        if tensor is not None and tensor.slices:
            return self._read_slices(tensor)
        file = self._file_of.get(label, self._files[0])
        data = file.data(label)
        if tensor is not None and not tensor.has_place:
            return part_of_heads(tensor, file.tensors[label].type, data)
        return data if tensor is None else data[tensor.start : tensor.start + tensor.nbytes]

    def _read_slices(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        files = {file.descriptor: file for file in self._files}
        size = tensor.nbytes // len(tensor.slices)
        return np.concatenate(
            [
                np.frombuffer(files[at.descriptor].read(at.offset, size, tensor.label), np.uint8)
                for at in tensor.slices
            ]
        )

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

    def _stored_tensors(self) -> dict[str, TensorInfo]:
        """The tensors as the files have them, by canonical name."""
        in_files = {}
        for label, file in self._file_of.items():
            stored = file.tensors[label]
            place = FilePlace(file.descriptor, stored.offset)
            in_files[label] = TensorInfo(
                label, stored.shape, stored.type, stored.nbytes, label, place
            )
        found, whole = {}, with_stacks(in_files)
        for label, tensor in whole.items():
            name = self._names.canonical(label) or label
            found[name] = replace(tensor, name=name, shape=_shape(name, tensor.shape))
        # A tensor may have the canonical name of another tensor as its own name.
        if len(found) < len(whole):
            raise ModelFileError(f"{self.path}: two tensors have one name", field="tensors")
        return found


def _shape(canonical: str, stored: tuple[int, ...]) -> tuple[int, ...]:
    """The canonical shape.

    The gate of a shared expert, a matrix of one row, is stored as a row. Vectors of a recurrence
    may be stored as matrices: of one column, or with a row for each group. Filters may have axes of
    one element between channels and taps.
    """
    if canonical.endswith(".mlp.shared_gate.weight") and len(stored) == 1:
        return (1, *stored)
    if canonical.endswith(_FILTERS):
        return (prod(stored[:-1]), stored[-1])
    return (prod(stored),) if canonical.endswith(_VECTORS) else stored


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ModelFileError(f"{key} must be a string, got {value!r}", field=key)
    return value


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
