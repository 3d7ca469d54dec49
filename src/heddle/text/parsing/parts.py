"""What an answer is made of: text, reasoning, and calls of functions that the model asks for.

Plain data. Which characters are which is found by `text/parsing/reading.py`.
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
    """More of what the model says to itself before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function `name` begins: the answer's `index`-th, counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: JSON, as the model writes it."""

    index: int
    text: str


Part: TypeAlias = Text | Reasoning | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call. `arguments` is what the model wrote, which need not be JSON."""

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def parsed_answer(parts: Iterable[Part]) -> ParsedAnswer:
    """The answer that has these parts."""
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
