"""What a model comes from, whatever its files are: the door between formats and everything else.

A reader (`weights/gguf/`) turns files into a :class:`Checkpoint`. Model files, executors and the
tokenizer read canonical names only. What is peculiar to a format (names, prefixes, the order in
which a head's elements are paired for rotation) stays in its reader. Errors still name what the
user can find in the file: :meth:`Hyperparameters.label` and :meth:`Checkpoint.label` give the
file's own name of a thing.

Canonical names of tensors::

    embedding, output_norm, output, rope_divisors
    layers.{i}.attention_norm, layers.{i}.post_attention_norm
    layers.{i}.attention.{q,k,v,output,q_norm,k_norm}
    layers.{i}.mlp_norm, layers.{i}.post_mlp_norm
    layers.{i}.mlp.{gate,up,down}

each followed by `.weight`, or by `.bias`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.files import FileStamp
    from heddle.weights.tensor_types import TensorType

N = TypeVar("N", int, float)

_SMALLEST_FLOAT, _LARGEST_FLOAT = 2.0**-126, 2.0**127

HYPERPARAMETERS = {
    "layers": "number of layers",
    "width": "elements of the hidden state between layers",
    "mlp_width": "elements between the two halves of a feed-forward layer",
    "heads": "query heads",
    "kv_heads": "key/value heads",
    "key_dim": "elements of a head's key and query",
    "value_dim": "elements of a head's value",
    "context": "most tokens of a sequence",
    "vocabulary": "number of token ids",
    "norm_eps": "what a norm adds to the mean square",
    "window": "positions that a layer with a sliding window sees",
    "window_period": "every so many layers one sees all positions",
    "window_layers": "for each layer whether it sees a window only",
    "activation": "activation of feed-forward layers: silu, gelu",
    "attention.scale_dim": "scores are divided by the square root of this",
    "logit_cap": "logits are capped softly at this; 0 for no cap",
    "rope.dim": "leading elements of a head that are rotated",
    "rope.base": "frequency base",
    "rope.local_base": "frequency base of layers with a sliding window",
    "rope.interleaved": "whether neighbours are rotated against each other, or halves",
    "rope.scaling": "kind of scaling for long contexts: none, linear, llama3, yarn, longrope",
    "rope.factor": "by how much the context is stretched",
    "rope.original_context": "most tokens of a sequence before stretching",
    "rope.attention_factor": "factor on queries and keys that goes with the scaling",
    "rope.beta_fast": "yarn: rotations within the original context from which pairs stay",
    "rope.beta_slow": "yarn: rotations below which pairs are stretched in full",
    "rope.low_turns": "llama3: rotations below which pairs are stretched in full",
    "rope.high_turns": "llama3: rotations within the original context from which pairs stay",
    "rope.short_divisors": "longrope: divisors of frequencies within the original context",
    "rope.long_divisors": "longrope: divisors of frequencies beyond it",
    "pooling": "what an embedding is made of: mean or last",
}
"""Canonical names of hyperparameters, with what they mean. A reader fills in what its files say."""


class Hyperparameters:
    """Numbers and names that a model is built from, under canonical names.

    Every method raises :class:`ModelFileError` with the file's own name of a value that is missing
    or has the wrong kind.
    """

    def __init__(self, values: Mapping[str, object], label: Callable[[str], str] = str) -> None:
        """`values` by canonical name; `label` gives the file's own name of a canonical one."""
        unknown = values.keys() - HYPERPARAMETERS.keys()
        assert not unknown, f"no canonical names: {unknown}"
        self._values = values
        self._label = label

    def label(self, name: str) -> str:
        """What the file calls the hyperparameter `name`."""
        return self._label(name)

    def get(self, name: str, default: object = None) -> object:
        """The value as the file has it, of any kind."""
        return self._values.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        return self._number(name, int, default)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number that float32 holds."""
        return self._number(name, float, default)

    def numbers(self, name: str, entries: int) -> tuple[float, ...]:
        """So many positive numbers that float32 holds."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != entries:
            self.fail(name, f"must be a list of {entries} numbers, got {values!r}")
        return tuple(self._checked(name, value, float) for value in values)

    def choice(self, name: str, options: tuple[str, ...], default: str) -> str:
        """One of some names."""
        value = self._values.get(name, default)
        if not isinstance(value, str) or value not in options:
            label = self.label(name)
            raise UnsupportedModelError(
                f"{label} {value!r} is not supported; supported: {', '.join(options)}", param=label
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, got {value!r}")
        return value

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error of a hyperparameter that is wrong in itself or beside another."""
        label = self.label(name)
        raise ModelFileError(f"{label} {problem}", field=label)

    def _number(self, name: str, kind: type[N], default: N | None) -> N:
        return self._checked(name, self._values.get(name, default), kind)

    def _checked(self, name: str, value: object, kind: type[N]) -> N:
        allowed = (int,) if kind is int else (int, float)
        low, high = (1, math.inf) if kind is int else (_SMALLEST_FLOAT, _LARGEST_FLOAT)
        if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
            whole = "whole " if kind is int else ""
            self.fail(name, f"must be a positive {whole}number, got {value!r}")
        return kind(value)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Bytes of an open file, for readers that want no copy in between."""

    descriptor: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint, and where its bytes lie.

    Attributes:
        name: canonical name, or the file's own where there is none.
        shape: row-major, the last axis contiguous.
        type: storage type.
        nbytes: bytes it takes.
        label: the name that the file has for it.
        place: where its bytes are; None where they are not stored as `type`, and
            :meth:`Checkpoint.read` makes them.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    nbytes: int
    label: str
    place: FilePlace | None


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What a tokenizer is made of. Its lists have one entry for each token id, but for `merges`.

    Attributes:
        algorithm: "bpe" (byte-level byte pairs) or "sentencepiece".
        pieces: each token's text as stored.
        types: numbers of :class:`heddle.text.tokenizer.vocabulary.TokenType`; None where the files
            do not say.
        merges: two pieces with a space between, best first.
        scores: of "sentencepiece", where the files have no merges: two pieces that make the piece
            of highest score are joined first.
        pre_tokenizer: name of the way in which text is cut into words; None for the default one.
        patterns: of "bpe": the patterns that cut text into words, where the files have them
            themselves; None where they name a `pre_tokenizer`.
        whole_words: with `patterns`: a word that is a piece stays whole, whatever the merges say.
        end_ids: more ids that end a generation.
        roles: ids of tokens that the files name for a role: bos, eos, eot, eom, fim_prefix,
            fim_suffix, fim_middle, fim_pad, fim_repository, fim_separator.
        add_bos, add_eos, add_space_prefix: what texts get; None where the files do not say.
        label: the file's own name of an attribute or of a role's token, for errors.
    """

    algorithm: str
    pieces: list[str]
    types: list[int] | None
    merges: list[str]
    scores: list[float]
    pre_tokenizer: str | None
    roles: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    label: Callable[[str], str]
    patterns: tuple[str, ...] | None = None
    whole_words: bool = False
    end_ids: tuple[int, ...] = ()

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error of an attribute that is wrong in itself or beside another."""
        label = self.label(name)
        raise ModelFileError(f"{label} {problem}", field=label)

    def check_entries(self, name: str, entries: int) -> None:
        """Raise ModelFileError unless `name` has an entry for each token."""
        if entries != len(self.pieces):
            self.fail(name, f"has {entries} entries for {len(self.pieces)} tokens")


class Checkpoint(Protocol):
    """A model's files, opened. Nothing in them is believed before it is checked.

    Attributes:
        path: the file or folder.
        format: name of the format, a key of the names in `heddle.models.registry`.
        architecture: the architecture's name in that format.
        hyperparameters: under canonical names.
        tensors: by canonical name, in the order of the files.
        chat_template: source of the chat template; None without one.
        stamps: of each file with tensors, from when it was opened.
    """

    path: Path
    format: str
    architecture: str
    hyperparameters: Hyperparameters
    tensors: Mapping[str, TensorInfo]
    chat_template: str | None

    @property
    def stamps(self) -> Mapping[Path, FileStamp]: ...

    def label(self, name: str) -> str:
        """The file's own name of the tensor `name`, whether it is there or not."""
        ...

    def tokenizer(self) -> TokenizerSpec:
        """What the tokenizer is made of.

        Raises:
            UnsupportedModelError: its algorithm is not supported.
            ModelFileError: something is missing or has the wrong kind.
        """
        ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """The bytes (nbytes,) of tensor `name`, in memory.

        Raises:
            ModelFileError: the file has no such tensor, or ends before the tensor does.
            ModelSourceError: it cannot be read.
        """
        ...

    def check_unchanged(self) -> None:
        """Make sure that what was read since opening belongs together.

        Raises:
            ModelFileError: somebody has written to the files since.
        """
        ...


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model's files say of themselves. Nothing of it is checked.

    Attributes:
        format: name and version.
        file_bytes: size of the files.
        architecture, name: None where the files do not say.
        hyperparameters: under canonical names.
        tensors: type, shape and bytes of each.
        metadata: all of it, in values that JSON has; an array of more than a few elements is a
            mapping of its `length` and its `first` elements.
    """

    format: str
    file_bytes: int
    architecture: str | None
    name: str | None
    hyperparameters: Hyperparameters
    tensors: tuple[tuple[TensorType, tuple[int, ...], int], ...]
    metadata: Mapping[str, object]


def claim(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> TensorInfo:
    """The tensor `name`, which must have this shape.

    Raises:
        ModelFileError: it is missing or has another shape.
    """
    label = checkpoint.label(name)
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"{checkpoint.path}: tensor {label} is missing", field=label)
    if tensor.shape != shape:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {label} has shape {tensor.shape}, the hyperparameters ask"
            f" for {shape}",
            field=label,
        )
    return tensor


def non_finite_weights(checkpoint: Checkpoint, tensor: TensorInfo, where: str) -> ModelFileError:
    """The error of a tensor with infinite or NaN weights; `where` names the first of them."""
    return ModelFileError(
        f"{checkpoint.path}: tensor {tensor.label} has infinite or NaN weights"
        f" ({where}), so no answer would be right; fetch the file again, or look into it"
        " with --allow-nonfinite",
        field=tensor.label,
    )
