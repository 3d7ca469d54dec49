"""Describes a model file and the memory it needs, for people and for programs.

This reads only the header. It never refuses odd or missing hyperparameters: it describes what the
file says, and everything else is unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from heddle.weights.formats import read_outline
from heddle.weights.state_sizes import known_count, kv_bytes_per_token, state_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from heddle.weights.checkpoint import Outline
    from heddle.weights.tensor_types import TensorType

_SHOWN_CHARACTERS = 80
_WIDE = 72
"""Columns from which values stand beside their labels."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """All tensors of one type.

    Attributes:
        type: name of the type.
        count: number of tensors.
        elements: elements of all tensors.
        bytes: bytes of all tensors.
        supported: whether Heddle can run tensors of this type.
    """

    type: str
    count: int
    elements: int
    bytes: int
    supported: bool


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of memory to run the model. None if the file does not say enough.

    Attributes:
        weights: bytes of all tensors as stored.
        kv_per_token: bytes of the keys and values of one token in all layers, or of its latents,
            by KV type. Types that cannot hold heads of the model's size are left out.
        kv_context: bytes of the KV cache of one sequence that fills the context, by KV type.
        kv_kind: content of the KV cache: "keys and values" or "latents".
        state: bytes of the fixed-size state of one sequence; 0 if no layer is recurrent.
    """

    weights: int
    kv_per_token: Mapping[str, int] | None
    kv_context: Mapping[str, int] | None
    kv_kind: str = "keys and values"
    state: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a model.

    Attributes:
        count: number of experts in a layer.
        used: experts that compute each token; None if the file does not say.
        active_parameters: elements of the tensors that compute one token; None without `used`.
        active_bytes: their bytes; None without `used`.
    """

    count: int
    used: int | None
    active_parameters: int | None
    active_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The description of one model file. None means that the file does not say.

    Attributes:
        path: absolute path of the file.
        format: name and version of the format.
        file_bytes: size of the file.
        architecture: name of the architecture.
        name: name of the model.
        parameters: elements of all tensors.
        context: most tokens of a sequence.
        vocabulary: number of tokens.
        experts: mixture of experts; None if the model is dense.
        tensors: tensors by storage type, the largest group first.
        memory: memory to run the model.
        sampling: sampling parameters that the files or the catalogue recommend, by name.
        end_tokens: texts of the tokens that the files name as ends of a generation, by id.
        metadata: all metadata, as values that JSON has. A long array is a mapping with its `length`
            and its `first` elements.
    """

    path: str
    format: str
    file_bytes: int
    architecture: str | None
    name: str | None
    parameters: int
    context: int | None
    vocabulary: int | None
    experts: Experts | None
    tensors: tuple[TensorGroup, ...]
    memory: MemoryEstimate
    sampling: Mapping[str, object]
    end_tokens: Mapping[int, str | None]
    metadata: Mapping[str, object]

    def to_json(self) -> str:
        """The fields as an indented JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False)


def describe(
    path: Path, name: str | None = None, sampling: Mapping[str, object] = MappingProxyType({})
) -> ModelDescription:
    """Describe the model at `path`. `name` and each of `sampling` hold if its files have none.

    Raises:
        ModelSourceError, ModelFileError, UnsupportedModelError: the file cannot be read.
    """
    outline = read_outline(path)
    hyperparameters = outline.hyperparameters
    context = known_count(hyperparameters, "context")
    kv_per_token = kv_bytes_per_token(hyperparameters)
    groups = _groups(outline)
    return ModelDescription(
        path=str(path.absolute()),
        format=outline.format,
        file_bytes=outline.file_bytes,
        architecture=outline.architecture,
        name=outline.name or name,
        parameters=sum(group.elements for group in groups),
        context=context,
        vocabulary=known_count(hyperparameters, "vocabulary"),
        experts=_experts(outline),
        tensors=groups,
        memory=MemoryEstimate(
            weights=sum(group.bytes for group in groups),
            kv_per_token=kv_per_token,
            kv_context=_times(kv_per_token, context),
            kv_kind="latents" if known_count(hyperparameters, "latent_rank") else "keys and values",
            state=state_bytes(hyperparameters),
        ),
        sampling={**sampling, **outline.sampling},
        end_tokens=outline.end_tokens,
        metadata=outline.metadata,
    )


def _groups(outline: Outline) -> tuple[TensorGroup, ...]:
    by_type: dict[TensorType, list[tuple[int, int]]] = defaultdict(list)
    for kind, shape, nbytes in outline.tensors:
        by_type[kind].append((prod(shape), nbytes))
    groups = (
        TensorGroup(
            type=kind.name,
            count=len(members),
            elements=sum(elements for elements, _ in members),
            bytes=sum(nbytes for _, nbytes in members),
            supported=kind.is_supported,
        )
        for kind, members in by_type.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.bytes))


def _experts(outline: Outline) -> Experts | None:
    """Stacked tensors belong to experts: their first axis is the expert."""
    count = known_count(outline.hyperparameters, "experts")
    if count is None:
        return None
    used = known_count(outline.hyperparameters, "experts_used")
    if used is None:
        return Experts(count, None, None, None)
    elements = size = 0
    for _, shape, nbytes in outline.tensors:
        is_stacked = len(shape) == 3 and shape[0] == count
        part, whole = (used, count) if is_stacked else (1, 1)
        elements += prod(shape) * part // whole
        size += nbytes * part // whole
    return Experts(count, used, elements, size)


# --- hyperparameters -----------------------------------------------------------------------------


def _times(bytes: Mapping[str, int] | None, factor: int | None) -> Mapping[str, int] | None:
    if bytes is None or factor is None:
        return None
    return {kv_type: each * factor for kv_type, each in bytes.items()}


# --- for people ----------------------------------------------------------------------------------


def render(description: ModelDescription, console: Console) -> None:
    """Print `description` as tables, in a narrow console as lists.

    Text from the file is escaped for the terminal.
    """
    if console.width < _WIDE:
        _print_list(console, "Model", _summary(description))
        _print_list(console, "Tensors", _tensors(description))
        _print_list(console, "Metadata", _metadata(description))
        return
    console.print(_pairs_table("Model", _summary(description)))
    console.print(_tensor_table(description))
    console.print(_pairs_table("Metadata", _metadata(description)))


def _print_list(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """Print each value below its label."""
    from rich.padding import Padding

    console.print(f"[italic]{title}[/]")
    for label, value in rows.items():
        console.print(Padding(f"[dim]{label}[/]", (0, 0, 0, 2)))
        console.print(Padding(value, (0, 0, 0, 4)))


def _table(title: str, *columns: str, numbers: bool = False) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=numbers)
    for index, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if numbers and index else "left",
            no_wrap=index == 0,
            overflow="fold",
        )
    return table


def _pairs_table(title: str, rows: Mapping[str, str]) -> Table:
    table = _table(title, "", "")
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def _summary(description: ModelDescription) -> dict[str, str]:
    memory = description.memory
    return {
        "path": _shown(description.path, len(description.path)),
        "format": description.format,
        "architecture": _shown(description.architecture),
        "name": _shown(description.name),
        "parameters": f"{description.parameters:,}",
        **_expert_rows(description.experts),
        "context": _number(description.context, " tokens"),
        "vocabulary": _number(description.vocabulary, " tokens"),
        "file": _size(description.file_bytes),
        "sampling, by default": _shown(_sampling(description.sampling)),
        "ends with": _shown(_tokens(description.end_tokens)),
        "memory: weights": _size(memory.weights),
        f"memory: {memory.kv_kind}, one token": _sizes(memory.kv_per_token),
        "memory: KV cache, full context": _sizes(memory.kv_context),
        **({"memory: state, one sequence": _size(memory.state)} if memory.state else {}),
    }


def _expert_rows(experts: Experts | None) -> dict[str, str]:
    if experts is None:
        return {}
    return {
        "experts": f"{experts.count}, {_number(experts.used, ' for each token')}",
        "parameters for each token": _number(experts.active_parameters, ""),
        "weights for each token": _size(experts.active_bytes),
    }


def _tensor_table(description: ModelDescription) -> Table:
    columns = ("type", "count", "elements", "size", "bits", "supported")
    table = _table("Tensors", *columns, numbers=True)
    for group in description.tensors:
        table.add_row(
            group.type,
            str(group.count),
            f"{group.elements:,}",
            _size(group.bytes),
            f"{8 * group.bytes / group.elements:.2f}",
            "yes" if group.supported else "no",
        )
    return table


def _tensors(description: ModelDescription) -> dict[str, str]:
    return {
        group.type: f"{group.count:,} with {group.elements:,} elements, {_size(group.bytes)},"
        f" {8 * group.bytes / group.elements:.2f} bits"
        + ("" if group.supported else ", not supported")
        for group in description.tensors
    }


def _metadata(description: ModelDescription) -> dict[str, str]:
    return {_shown(key): _shown(_one_line(value)) for key, value in description.metadata.items()}


def _sampling(parameters: Mapping[str, object]) -> str:
    said = (f"{name} {_one_line(value)}" for name, value in parameters.items())
    return ", ".join(said) or "nothing recommended"


def _tokens(tokens: Mapping[int, str | None]) -> str | None:
    return ", ".join(f"{text or 'token'} ({id})" for id, text in tokens.items()) or None


def _one_line(value: object) -> str:
    if isinstance(value, Mapping) and "first" in value:
        first = ", ".join(str(item) for item in value["first"])
        return f"[{value['length']:,}] {first}, ..."
    if isinstance(value, list):
        return f"[{len(value)}] " + ", ".join(str(item) for item in value)
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _shown(text: str | None, most: int = _SHOWN_CHARACTERS) -> str:
    """`text` on one line, shortened, without control characters or console markup."""
    from rich.markup import escape

    if text is None:
        return "unknown"
    visible = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[:most])
    return escape(visible + ("..." if len(text) > most else ""))


def _number(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,}{unit}"


def _sizes(bytes: Mapping[str, int] | None) -> str:
    if bytes is None:
        return "unknown"
    if not any(bytes.values()):
        return "none"
    return ", ".join(f"{_size(each)} in {kv_type}" for kv_type, each in bytes.items())


def _size(size: int | None) -> str:
    from rich.filesize import decimal

    return "unknown" if size is None else decimal(size)
