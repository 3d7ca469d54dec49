"""The eyes of a model as a checkpoint of their own: what an encoder of pictures is loaded from.

A model's files have its eyes beside its text model, or a file of their own has them. Both readers
make an :class:`EyesCheckpoint`, whose names are the same.

Canonical names of tensors, each followed by `.weight` or `.bias`::

    patches: (width, 3 * patch * patch), columns in order channel, y, x
    first: (width,), a token before the patches;  positions: (rows, width)
    pre_norm, output_norm: before and after the layers
    layers.{i}.{attention_norm,mlp_norm}, layers.{i}.attention.{q,k,v,output,q_norm,k_norm}
    layers.{i}.mlp.{gate,up,down};  layers.{i}.{after_attention_norm,after_mlp_norm}
    layers.{i}.MATRIX.{input_min,input_max,output_min,output_max}: limits of what a matrix sees
    adapter.{up,down}: of Llama 4, between the layers and the projection
    projection.{norm,matrix,gate,up,down,merge,middle_norm,standard}: to the width of the text model
    deepstack.{k}.{norm,up,down}: projections to the states after layer k of the text model
    row_break: (width of the text model,), the row after each row of patches

The bias of a norm is a vector with a name of its own, such as `output_norm.bias.weight`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace, TensorInfo
from heddle.weights.generation import Recommended
from heddle.weights.hyperparameters import Hyperparameters
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TokenizerSpec
    from heddle.weights.files import FileStamp
    from heddle.weights.hyperparameters import Bounds

    Floats = NDArray[np.float32]

HYPERPARAMETERS = {
    "layers": "layers that are used",
    "width": "elements of the state of a patch",
    "mlp_width": "elements of the inner state of a feed-forward layer",
    "heads": "heads of attention",
    "norm_eps": "term that a norm adds to the variance, or to the mean square",
    "activation": "of feed-forward layers: gelu, gelu_exact, gelu_quick or silu",
    "projection_activation": "of the projection; the same names",
    "projection_norm_eps": "the same term, of norms of the projection",
    "patch": "pixels along the side of a patch",
    "image_size": "pixels along the side of a tile, or of the largest picture",
    "text_width": "elements of the hidden state of the text model",
    "merge": "patches along the side of the square that becomes one row",
    "window": "patches along the side of a window of attention",
    "full_layers": "indices of layers whose attention has no windows",
    "deepstack_layers": "indices of layers whose states the text model's first layers see, too",
    "feature_layers": "where several: numbers of layers after which states are read",
    "keeps_first": "whether the row of the token before the patches is kept",
    "projected_width": "elements of the rows that the projection makes",
    "positions_side": "positions along the side of the square that `positions` has",
    "rows": "rows that a tile becomes",
    "whole": "whether tokens of a picture see one another in the text model",
    "rope.base": "frequency base of rotary positions",
}
"""Canonical names and meanings of hyperparameters of eyes."""

_MOST = {"patch": 1 << 8, "merge": 1 << 5, "image_size": 1 << 14, "window": 1 << 10}
"""Upper bounds of sizes that no tensor sets."""
_LAST = ("projection.down.weight", "projection.matrix.weight")
"""The tensor whose result is a row: the first of these that a kind has."""
_WIDTHS = ("width", "mlp_width", "heads", "projected_width")
_LAYERS = ("full_layers", "deepstack_layers", "feature_layers")


class EyesHyperparameters(Hyperparameters):
    """Hyperparameters of eyes. The names are those of `HYPERPARAMETERS` here."""

    def __init__(
        self, values: Mapping[str, object], label: Callable[[str], str], bounds: Bounds
    ) -> None:
        """See :class:`Hyperparameters`.

        Raises ModelFileError: a count exceeds its bound, or a list names a layer that is none.
        """
        unknown = values.keys() - HYPERPARAMETERS.keys()
        assert not unknown, f"not canonical names: {unknown}"
        super().__init__({}, label)
        self._values = values
        most = {**_MOST, "layers": bounds.tensors, **dict.fromkeys(_WIDTHS, bounds.longest)}
        for name, bound in most.items():
            value = values.get(name)
            if isinstance(value, int) and abs(value) > bound:
                self.fail(name, f"is {value}, but at most {bound} is possible in these files")
        for name in _LAYERS:
            self._check_layers(name, values.get(name, []))

    def _check_layers(self, name: str, listed: object) -> None:
        layers = self.integer("layers")
        if not isinstance(listed, list) or len(listed) > layers + 1:
            self.fail(name, "must be a list of layers, each once at most")
        most = layers if name == "feature_layers" else layers - 1  # states also before the first
        for one in listed:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= most:
                self.fail(name, f"names layer {one!r}, but at most {most} is possible")


class Source(Protocol):
    """The files that have the eyes."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all tensors, by their own names."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """All metadata of a GGUF file; empty for a folder, whose values are in other files."""
        ...

    @property
    def stamps(self) -> Mapping[Path, FileStamp]: ...

    def info(self, label: str) -> TensorInfo:
        """A tensor as it is stored.

        Raises:
            UnsupportedModelError: tensors of its type are not supported.
        """
        ...

    def read(self, label: str, start: int, size: int) -> NDArray[np.uint8]: ...

    def check_unchanged(self) -> None: ...

    def close(self) -> None:
        """Close the files, unless the text model reads them. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """How a canonical tensor comes from stored ones.

    Attributes:
        labels: the stored tensors, at least one.
        shape: of the canonical tensor.
        first: first row of the stored tensor that it takes; it takes as many as `shape` has.
        make: computes it, of any shape, from their values; None: the bytes are the stored ones.
    """

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    first: int = 0
    make: Callable[[list[Floats]], Floats] | None = None


class EyesCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`. `architecture` is the kind of eyes."""

    chat_template: str | None = None
    prompts: Mapping[str, str] = MappingProxyType({})
    default_prompt = ""

    def __init__(
        self,
        kind: str,
        source: Source,
        hyperparameters: Hyperparameters,
        origins: Mapping[str, Origin],
        label: Callable[[str], str],
    ) -> None:
        """`label` returns the files' own name of a canonical name."""
        self.path, self.format, self.architecture = source.path, source.format, kind
        self.hyperparameters = hyperparameters
        self._source = source
        self._origins = origins
        self._label = label
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: self._info(name, origin) for name, origin in origins.items()}
        )

    @property
    def metadata(self) -> Mapping[str, object]:
        """See :class:`Source`."""
        return self._source.metadata

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return self._source.stamps

    def label(self, name: str) -> str:
        return self._label(name)

    def sources(self, name: str) -> tuple[str, ...]:
        """The stored tensors that the tensor `name` is made of."""
        return self._origins[name].labels

    def tokenizer(self) -> TokenizerSpec:
        self._fail("tokenizer")

    def recommended(self) -> Recommended:
        return Recommended({}, {}, str(self.path))

    def read(self, name: str, start: int = 0, size: int | None = None) -> NDArray[np.uint8]:
        tensor = self.tensors.get(name)
        if tensor is None:
            self._fail(f"tensor {self.label(name)}")
        wanted = range(tensor.nbytes)[start : None if size is None else start + size]
        origin = self._origins[name]
        if origin.make is None:
            return self._source.read(tensor.label, tensor.start + wanted.start, len(wanted))
        made = origin.make([self._values(label) for label in origin.labels])
        raw = np.ascontiguousarray(made, np.float32).reshape(-1).view(np.uint8)
        return raw[wanted.start : wanted.stop]

    def reads_parts(self, name: str) -> bool:
        return self._origins[name].make is None

    def check_unchanged(self) -> None:
        self._source.check_unchanged()

    def close(self) -> None:
        """Close the files, unless the text model reads them. Idempotent."""
        self._source.close()

    def _values(self, label: str) -> Floats:
        stored = self._source.info(label)
        raw = self._source.read(label, 0, stored.nbytes)
        return dequantize(raw, stored.type, stored.shape)

    def _info(self, name: str, origin: Origin) -> TensorInfo:
        stored = self._source.info(origin.labels[0])
        if origin.make is not None:
            size = 4 * prod(origin.shape)
            return TensorInfo(name, origin.shape, TensorType.F32, size, stored.label, None)
        whole, elements = prod(stored.shape), prod(origin.shape)
        if elements == whole:
            return replace(stored, name=name, shape=origin.shape)
        row = stored.nbytes // stored.shape[0]
        start, place = origin.first * row, stored.place
        if place is not None:
            place = FilePlace(place.descriptor, place.offset + start)
        size = origin.shape[0] * row
        return TensorInfo(name, origin.shape, stored.type, size, stored.label, place, start=start)

    def _fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {what} of the eyes is missing", field=what)


def check_fits(eyes: EyesCheckpoint, text: Checkpoint) -> None:
    """Check that the eyes make rows for the text model.

    Raises:
        ModelFileError: the last tensor of the projection is missing, or has other rows.
    """
    last = next(one for one in _LAST if eyes.label(one) != one)
    width, tensor = text.hyperparameters.integer("width"), eyes.tensors.get(last)
    if tensor is None:
        label = eyes.label(last)
        raise ModelFileError(f"{eyes.path}: tensor {label} is missing", field=label)
    if tensor.shape[0] != width:
        raise ModelFileError(
            f"{eyes.path}: tensor {tensor.label} makes rows of {tensor.shape[0]} elements, but the"
            f" model of {text.path} has a width of {width}; these eyes belong to another model",
            field=tensor.label,
        )
