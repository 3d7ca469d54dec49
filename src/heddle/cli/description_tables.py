"""Prints the description of a model file as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from heddle.weights.inspect import Experts, ModelDescription

_SHOWN_CHARACTERS = 80
_WIDE = 72
"""Columns from which values stand beside their labels."""


def print_description(description: ModelDescription, console: Console) -> None:
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
        **{title: _shown(text) for title, text in description.answers.items()},
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
