"""Fits an adapter to its model: names, shapes and orders of rows are those of the model's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.lengths import with_lengths
from heddle.extensions.lora.naming import STACKS, expert_of
from heddle.extensions.lora.row_orders import reordered
from heddle.weights.fused import FUSED_PARTS
from heddle.weights.heads import FUSED
from heddle.weights.low_rank import Change, LowRank, Whole, expert_name
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.extensions.lora.naming import Naming
    from heddle.extensions.lora.pairs import Pair, Side
    from heddle.weights.checkpoint import Checkpoint

    Floats = NDArray[np.float32]

_FUSED = {fused.rpartition(".")[2]: parts for fused, parts in FUSED_PARTS.items()}
_OUTPUT, _EMBEDDING = "output.weight", "embedding.weight"
_NO_PRODUCTS = re.compile(r"(embedding|positions|segments|layer_inputs\..+|.+_?conv)\.weight")
"""Tensors with two axes that nothing is multiplied with."""
_SAME_ROWS = re.compile(
    r"(output|embedding)\.weight"
    r"|layers\.\d+\.(attention\.(q|k|v|output)|mlp\.((shared|experts)\.)?(gate|up|down))\.weight"
)
"""Matrices whose rows and columns have one order in all formats, but for those that rotate."""
_OTHER_VALUES = frozenset({"falcon_h1", "falcon-h1", "glm4v_text"})
"""Architectures whose matrices in GGUF are multiplied by factors, or whose rotated rows have an
order there that an adapter's metadata does not tell."""
_NORMED_OUTPUT = frozenset({"bailing_moe", "bailingmoe"})
"""Architectures that may norm the rows of their output matrix, after a change of it."""
_ROTATED = (".attention.q.weight", ".attention.k.weight")


def fit(
    pairs: Sequence[Pair],
    scale: Callable[[Pair], float],
    naming: Naming,
    base: Checkpoint,
) -> dict[str, Change]:
    """The changes of a model's matrices, by canonical name without `.weight`.

    Names and shapes of all pairs are checked before any is read.

    Raises:
        ModelFileError: a pair does not fit the model, or has infinite or NaN values.
        UnsupportedModelError: a pair changes what Heddle cannot change.
    """
    owners: dict[str, Pair] = {}
    planned = [(pair, list(_changes(pair, naming, base))) for pair in pairs]
    for pair, changes in planned:
        for change in changes:
            other = owners.setdefault(change.product, pair)
            if other is not pair:
                raise ModelFileError(
                    f"{other.b.label} and {pair.b.label} both change {base.label(change.name)}; an"
                    " adapter changes each matrix once. Export the adapter again",
                    field=pair.b.label,
                )
    found: dict[str, Change] = {}
    for pair, changes in planned:
        factor, a, b = scale(pair), finite(pair.a), finite(pair.b)
        magnitude = None if pair.magnitude is None else finite(pair.magnitude)
        for change in changes:
            of_a, of_b = (a, b) if pair.experts is None else (a[change.expert], b[change.expert])
            part = _in_order(of_b[change.rows], change.name, naming, base)
            low_rank = LowRank(of_a, part, factor, smallest_type(of_a, part))
            if magnitude is not None:
                lengths = magnitude[change.rows, None]
                wanted = _in_order(lengths, change.name, naming, base)[:, 0]
                low_rank = with_lengths(low_rank, wanted, change.name, base)
            found[change.product] = low_rank
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    """A matrix of the model that a pair changes: its tensor, expert, and rows of the pair's `b`."""

    name: str
    expert: int | None
    rows: slice

    @property
    def product(self) -> str:
        stem = self.name.removesuffix(".weight")
        return stem if self.expert is None else expert_name(stem, self.expert)


def _changes(pair: Pair, naming: Naming, base: Checkpoint) -> Iterator[_Change]:
    """The matrices of the model that a pair changes."""
    name, expert = naming.canonical(pair.matrix), expert_of(pair.matrix)
    if name is not None and name.endswith(STACKS):
        name = _stack_of(pair, name.removesuffix(".weight"), base)
    _check_target(pair, name, naming, base)
    assert name is not None, "checked"
    parts = _parts(name, base)
    shapes = [_shape(part, base) for part in parts]
    if pair.is_lookup:  # a column of a x is a row of the table
        shapes = [shape[::-1] for shape in shapes]
    rows, columns = sum(shape[-2] for shape in shapes), shapes[0][-1]
    experts = None if expert is not None or len(shapes[0]) == 2 else shapes[0][0]
    if (pair.experts, pair.b.shape[-2], pair.a.shape[-1]) != (experts, rows, columns):
        raise _misfit(
            pair, name, (rows, columns) if experts is None else (experts, rows, columns), base
        )
    first = 0
    for part, shape in zip(parts, shapes, strict=True):
        of_part = slice(first, first + shape[-2])
        for one in (expert,) if experts is None else range(experts):
            yield _Change(part, one, of_part)
        first += shape[-2]


def _stack_of(pair: Pair, stem: str, base: Checkpoint) -> str:
    """Which stack of a layer's experts a pair changes: PEFT does not name it."""
    down = f"{stem}.down.weight"
    is_down = _shape(down, base)[1:] == (pair.b.shape[-2], pair.a.shape[-1])
    return down if is_down else f"{stem}.gate_up.weight"


def _check_target(pair: Pair, name: str | None, naming: Naming, base: Checkpoint) -> None:
    label = pair.matrix
    if name is not None and _NO_PRODUCTS.fullmatch(name) and not pair.is_lookup:
        raise _unsupported(label, "only matrices that hidden states are multiplied with can change")
    if name is not None:
        check_values(label, name, naming, base)
    if name is not None and name.endswith(FUSED):
        raise _unsupported(label, "Heddle has keys and values of latent attention by head")
    if name is None and naming.has_made:
        raise _unsupported(label, "such models store matrices joined, transposed or by group")
    parts = [] if name is None else _parts(name, base)
    shapes = [_shape(part, base) for part in parts]
    if not parts or not all(shapes):
        raise ModelFileError(
            f"the adapter changes {label}, and {base.path} ({base.architecture}) has no matrix of"
            " this name; load the model that the adapter was trained for",
            field=label,
        )
    is_of_experts = ".mlp.experts." in parts[0]
    if any(len(shape) != (3 if is_of_experts else 2) for shape in shapes):
        raise _unsupported(label, "it is no matrix")
    expert = expert_of(label)
    if is_of_experts and expert is not None and expert >= shapes[0][0]:
        raise ModelFileError(
            f"the adapter changes {label}, and the layer has {shapes[0][0]} experts; load the model"
            " that the adapter was trained for",
            field=label,
        )
    if pair.is_lookup and (name != _EMBEDDING or pair.magnitude is not None):
        raise _unsupported(label, "of rows that are looked up, plain changes of tokens' alone are")
    if is_of_experts and pair.magnitude is not None:
        raise _unsupported(label, "DoRA of experts")
    if naming.is_other_format:
        _check_other_format(label, parts, base)


def check_values(label: str, name: str, naming: Naming, base: Checkpoint) -> None:
    """Raise UnsupportedModelError if the model has another matrix than its adapter's format."""
    if name == _OUTPUT and base.architecture in _NORMED_OUTPUT:
        raise _unsupported(label, "such models norm the rows of the changed matrix")
    if naming.is_other_format and base.architecture in _OTHER_VALUES:
        raise _own_format_only(label)


def _own_format_only(label: str) -> UnsupportedModelError:
    return _unsupported(label, "this model takes adapters of its own format only")


def _check_other_format(label: str, parts: Sequence[str], base: Checkpoint) -> None:
    """Raise UnsupportedModelError if formats differ by more than the order of rotated rows."""
    if base.hyperparameters.get("latent_rank") is not None:
        raise _own_format_only(label)
    if not all(map(_SAME_ROWS.fullmatch, parts)):
        raise _unsupported(
            label,
            "adapters of another format than the model's change the matrices of attention, of"
            " feed-forward layers and of the output only",
        )


def _unsupported(label: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the adapter changes {label}, which is not supported: {reason}. Merge the adapter into its"
        " model, and load the merged model",
        param=label,
    )


def _parts(name: str, base: Checkpoint) -> list[str]:
    """The model's matrices whose rows the matrix `name` has, one after another: mostly itself."""
    before, _, last = name.removesuffix(".weight").rpartition(".")
    if name in base.tensors or last not in _FUSED:
        return [name]
    return [f"{before}.{part}.weight" for part in _FUSED[last]]


def _shape(name: str, base: Checkpoint) -> tuple[int, ...]:
    """The shape of a matrix of the model; empty if it has none.

    The embedding may be the output matrix, too.
    """
    found = base.tensors.get(name)
    if found is None and name == _OUTPUT:
        found = base.tensors.get(_EMBEDDING)
    return () if found is None else found.shape


def _misfit(pair: Pair, name: str, shape: tuple[int, ...], base: Checkpoint) -> ModelFileError:
    changed = (*pair.b.shape[:-1], pair.a.shape[-1])
    message = (
        f"tensors {pair.a.label} of shape {pair.a.shape} and {pair.b.label} of shape"
        f" {pair.b.shape} change a matrix of shape {changed}, and"
        f" {base.label(name)} of {base.path} has shape {shape}"
    )
    if name == _OUTPUT and changed[1:] == shape[1:]:
        message += (
            f": the adapter was trained with {pair.b.shape[0]:,} tokens, and the model has"
            f" {shape[0]:,}. Merge the adapter into the model it was trained for, and load that"
        )
    else:
        message += "; load the model that the adapter was trained for"
    return ModelFileError(message, field=pair.b.label)


def finite(side: Side) -> Floats:
    """The values of a side. Raises ModelFileError if one is infinite or NaN."""
    values = side.read()
    if not np.isfinite(values).all():
        raise ModelFileError(
            f"tensor {side.label} has infinite or NaN values, so no answer would be right; fetch"
            " the file again, or train the adapter anew",
            field=side.label,
        )
    return values


def _in_order(b: Floats, name: str, naming: Naming, base: Checkpoint) -> Floats:
    """The rows of a part in the order of the model's files."""
    if not naming.is_other_format or not name.endswith(_ROTATED):
        return b
    read = base.hyperparameters
    is_interleaved = read.flag("rope.interleaved", False)
    if naming.interleaved == is_interleaved:
        return b
    return reordered(b, name, read, interleave=is_interleaved)


def smallest_type(*arrays: Floats) -> TensorType:
    """BF16, F16 or F32: the first of them that holds all values exactly."""
    if not any((array.view(np.uint32) & 0xFFFF).any() for array in arrays):
        return TensorType.BF16
    with np.errstate(over="ignore"):
        halves = (array.astype(np.float16).astype(np.float32) for array in arrays)
        is_half = all(map(np.array_equal, halves, arrays))
    return TensorType.F16 if is_half else TensorType.F32


def nbytes_of(changes: Mapping[str, Change]) -> int:
    """Bytes of the values of changes in their types."""
    sizes = (
        (one.values.size if isinstance(one, Whole) else one.a.size + one.b.size, one.type)
        for one in changes.values()
    )
    return sum(size * kind.block_bytes for size, kind in sizes)
