"""Names of the tensors of eyes in files, and the canonical tensors that are made of stored ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.vision.eyes import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heddle.extensions.vision.eyes import Floats

    Shape = tuple[int, ...]

LIMITS = tuple(f"{side}_{end}" for side in ("input", "output") for end in ("min", "max"))
"""Parts of names of the limits of a matrix."""
_FUSED = ("q", "k", "v")
_STANDARD = ("bias", "factor")
_SCALED = {"attention_scale": "attention.output", "mlp_scale": "mlp.down"}
"""The matrix whose result a scale of a layer multiplies, by the scale's part."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a kind of eyes in a format.

    Attributes:
        outside: parts outside of layers, by canonical part.
        prefix: what is before the number of a layer.
        layer: parts of a layer, by canonical part.
        exact: whole names of tensors that do not end with `.weight` or `.bias`.
        exact_in_layer: such names of tensors of a layer.
        deepstack: what is before the number of a further projection; empty: there are none.
        in_deepstack: its parts, by canonical part.
        transposed: canonical names of matrices that the files have transposed.
        without_one: canonical names of weights of norms that the files have without their 1.
        channels_last: whether columns of the matrix of patches are in order y, x, channel.
        splits_heads: whether each half of a head turns by an axis of its own, by pairs of its own
            halves. The canonical head has the first halves of both before the second ones.
    """

    outside: Mapping[str, str]
    prefix: str
    layer: Mapping[str, str]
    exact: Mapping[str, str] = field(default_factory=dict)
    exact_in_layer: Mapping[str, str] = field(default_factory=dict)
    deepstack: str = ""
    in_deepstack: Mapping[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    without_one: tuple[str, ...] = ()
    channels_last: bool = False
    splits_heads: bool = False

    def table(self, layers: int, deepstack: Sequence[int] = ()) -> dict[str, str]:
        """The files' names of all tensors of eyes with so many layers, by canonical name.

        `deepstack` are the files' numbers of the further projections.
        """
        found = _in_full(self.outside) | dict(self.exact)
        parts = _in_full(self.layer) | dict(self.exact_in_layer)
        for i in range(layers):
            for name, stored in parts.items():
                found[f"layers.{i}.{name}"] = f"{self.prefix}{i}.{stored}"
        for k, number in enumerate(deepstack):
            for name, stored in _in_full(self.in_deepstack).items():
                found[f"deepstack.{k}.{name}"] = f"{self.deepstack}{number}.{stored}"
        return found


def _in_full(parts: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part, stored in parts.items():
        # The bias of a norm is a vector with a name of its own, as in `weights/tensor_names.py`.
        bias = "bias.weight" if part.endswith("norm") else "bias"
        found |= {f"{part}.weight": f"{stored}.weight", f"{part}.{bias}": f"{stored}.bias"}
    return found


def origins(
    names: Names, table: Mapping[str, str], stored: Mapping[str, Shape]
) -> dict[str, Origin]:
    """The canonical tensors whose stored ones there are.

    Args:
        names: the names of these eyes.
        table: the stored tensors' names, by canonical name.
        stored: the shapes of the stored tensors.

    Raises:
        ModelFileError: a tensor does not have the axes that it must have.
    """
    found: dict[str, Origin] = {}
    for name, label in table.items():
        if label in stored:
            found |= _origin(name, label, stored[label], names)
    if names.splits_heads:
        found |= _quartered(found)
    return _standardising(_with_scales(found))


def _quartered(found: Mapping[str, Origin]) -> dict[str, Origin]:
    """Queries, keys and their norms with the middle quarters of each head exchanged."""
    made = {}
    for name, origin in found.items():
        before, _, part = name.removesuffix(".weight").rpartition(".")
        norm = found.get(f"{before}.{part[0]}_norm.weight") if part else None
        if part not in ("q", "k", "q_norm", "k_norm") or norm is None:
            continue
        head = norm.shape[0]
        if head % 4 or origin.shape[0] % head:
            raise _wrong(origin.labels[0], origin.shape, f"rows of heads of {head} elements")
        made[name] = replace(origin, make=partial(_exchanged, head=head))
    return made


def _exchanged(given: list[Floats], head: int) -> Floats:
    quarters = given[0].reshape(-1, 2, 2, head // 4, *given[0].shape[1:])
    return quarters.swapaxes(1, 2).reshape(given[0].shape)


def _standardising(found: dict[str, Origin]) -> dict[str, Origin]:
    """The tensors, with (x - bias) * scale of each element as a matrix with a bias."""
    bias, scale = (found.pop(f"projection.standard_{part}.weight", None) for part in _STANDARD)
    if bias is None or scale is None:
        return found
    width, labels = prod(scale.shape), (*bias.labels, *scale.labels)
    if prod(bias.shape) != width:
        raise _wrong(bias.labels[0], bias.shape, f"as many elements as {scale.labels[0]}")
    return found | {
        "projection.standard.weight": Origin(
            scale.labels, (width, width), make=lambda given: np.diag(given[0].reshape(-1))
        ),
        "projection.standard.bias": Origin(
            labels, (width,), make=lambda given: -(given[0] * given[1]).reshape(-1)
        ),
    }


def _with_scales(found: Mapping[str, Origin]) -> dict[str, Origin]:
    """The tensors, with the scales of layers as factors on the matrices before them."""
    scaled = {name: one for name, one in found.items() if not name.endswith("_scale.weight")}
    for name in found.keys() - scaled.keys():
        before, part = name.removesuffix(".weight").rsplit(".", 1)
        for kind in ("weight", "bias"):
            product = f"{before}.{_SCALED[part]}.{kind}"
            if product in scaled:
                scaled[product] = _times(scaled[product], found[name])
    return scaled


def _times(origin: Origin, scale: Origin) -> Origin:
    """The rows of a tensor, which is stored as it is, times the elements of a vector."""
    if scale.shape != origin.shape[:1]:
        raise _wrong(scale.labels[0], scale.shape, f"as many elements as {origin.labels[0]} rows")

    def make(given: list[Floats]) -> Floats:
        return given[0] * given[1].reshape(-1, *(1,) * (given[0].ndim - 1))

    return Origin((*origin.labels, *scale.labels), origin.shape, make=make)


def _origin(name: str, label: str, shape: Shape, names: Names) -> dict[str, Origin]:
    """The tensor `name`, or the parts of a fused one."""
    stem, _, kind = name.rpartition(".")
    if not shape and stem.endswith(("_min", "_max")):
        shape = (1,)
    if not shape or 0 in shape:
        raise _wrong(label, shape, "elements along one axis or more")
    if stem.endswith("attention.qkv"):
        return dict(_taken_apart(stem, kind, label, shape))
    if name == "patches.weight":
        return {name: _patches(label, shape, channels_last=names.channels_last)}
    if name == "projection.merge.weight":
        return {name: _merge(label, shape)}
    if name in names.transposed:
        return {name: Origin((label,), shape[::-1], make=lambda found: found[0].T)}
    if name in names.without_one:
        return {name: Origin((label,), shape, make=lambda found: found[0] + np.float32(1))}
    if name in ("first.weight", "row_break.weight") or name.endswith("_scale.weight"):
        shape = (prod(shape),)
    elif name == "positions.weight":
        shape = (prod(shape[:-1]), shape[-1])
    return {name: Origin((label,), shape)}


def _taken_apart(stem: str, kind: str, label: str, shape: Shape) -> Iterator[tuple[str, Origin]]:
    if shape[0] % 3:
        raise _wrong(label, shape, "rows of queries, keys and values")
    rows, before = shape[0] // 3, stem.removesuffix("qkv")
    for place, part in enumerate(_FUSED):
        yield f"{before}{part}.{kind}", Origin((label,), (rows, *shape[1:]), place * rows)


def _patches(label: str, shape: Shape, *, channels_last: bool) -> Origin:
    """The matrix of patches, from a convolution, or from a matrix."""
    flat = (shape[0], prod(shape[1:]))
    if len(shape) == 2:
        if not channels_last:
            return Origin((label,), shape)
        side = round((shape[1] / 3) ** 0.5)
        if 3 * side**2 != shape[1]:
            raise _wrong(label, shape, "columns of three channels of a square")
        axes = (shape[0], side, side, 3)
        return Origin((label,), shape, make=lambda found: _channels_first(found[0], axes))
    if len(shape) == 4 and shape[1] == 3:
        return Origin((label,), flat)
    if len(shape) == 4 and shape[3] == 3:  # as MLX stores convolutions
        return Origin((label,), flat, make=lambda found: _channels_first(found[0], shape))
    if len(shape) == 5 and shape[1] == 3:
        # Both frames are the same picture, so their weights can be summed before.
        flat = (shape[0], 3 * prod(shape[3:]))
        return Origin((label,), flat, make=lambda found: found[0].reshape(shape).sum(2))
    raise _wrong(label, shape, "three channels")


def _merge(label: str, shape: Shape) -> Origin:
    """The matrix that makes one state of those of a square, patch by patch.

    The files have each element of a state of all patches together, as convolutions have them.
    """
    rows, columns = shape[0], prod(shape[1:])
    width = shape[1] if len(shape) == 4 else rows
    is_square = len(shape) == 2 or (len(shape) == 4 and shape[2] == shape[3])
    if not is_square or columns % width:
        raise _wrong(label, shape, "columns of a square of states")

    def make(given: list[Floats]) -> Floats:
        return given[0].reshape(rows, width, -1).swapaxes(1, 2).reshape(rows, columns)

    return Origin((label,), (rows, columns), make=make)


def _channels_first(values: Floats, axes: Shape) -> Floats:
    return np.moveaxis(values.reshape(axes), -1, 1)


def _wrong(label: str, shape: Shape, needed: str) -> ModelFileError:
    return ModelFileError(f"tensor {label} has shape {shape}; it must have {needed}", field=label)
