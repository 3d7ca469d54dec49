"""The parts of an answer: text, reasoning, and function calls.

Plain data. `text/parsing/answer_reader.py` finds the parts in a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer proper."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning, which it writes before the answer proper."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call of the function `name`. `index` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call: JSON, as the model wrote it."""

    index: int
    text: str


Part: TypeAlias = Text | Reasoning | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call. `arguments` is the text that the model wrote. It may be invalid JSON."""

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A complete answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def parsed_answer(parts: Iterable[Part]) -> ParsedAnswer:
    """The answer that consists of `parts`."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for part in parts:
        match part:
            case Text(more):
                text.append(more)
            case Reasoning(more):
                reasoning.append(more)
            case CallStart(_, name):
                calls.append((name, []))
            case CallArguments(index, more):
                calls[index][1].append(more)
    return ParsedAnswer(
        "".join(text),
        "".join(reasoning),
        tuple(Call(name, "".join(arguments)) for name, arguments in calls),
    )
