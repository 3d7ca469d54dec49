"""Regular parts of a grammar as automata over classes of characters, and as regular expressions."""

from __future__ import annotations

from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeVar

from heddle.extensions.grammars.gbnf.syntax import ANY, Alt, Chars, Repeat, Seq

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from heddle.extensions.grammars.gbnf.syntax import Node

_MOST_POSITIONS = 2_000
_MOST_STATES = 10_000
_COPIES = 3
"""Larger counts become loops in automata. An automaton then accepts more, never less."""

T = TypeVar("T")
K = TypeVar("K", bound="Hashable")

Place = frozenset[int]
"""A state of an automaton: positions of the last character. Empty: before the first."""


class Alphabet:
    """Sets of characters as integers: one bit for each class of characters that no node divides.

    Attributes:
        everything: the set of all characters.
    """

    def __init__(self, nodes: Iterable[Chars]) -> None:
        ranges = [one for node in nodes for one in node.ranges]
        self._cuts = sorted({cut for low, high in ranges for cut in (low, high + 1)})
        self.everything = (1 << (len(self._cuts) + 1)) - 1

    def bits(self, node: Chars) -> int:
        """The set of the node's characters."""
        index = self._index
        return sum((1 << index[hi + 1]) - (1 << index[lo]) for lo, hi in node.ranges)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {cut: place for place, cut in enumerate(self._cuts)}


class Automaton:
    """The characters that a regular node accepts after others (Glushkov's construction).

    It accepts all texts of the node, and may accept more. It is used only to find conflicts.

    Attributes:
        nullable: whether it accepts the empty text.
        first: the characters that its texts begin with.
    """

    def __init__(self, node: Node, alphabet: Alphabet) -> None:
        """
        Raises:
            OverflowError: the node is too large.
        """
        self._sets: list[int] = []
        self._follow: list[set[int]] = []
        self._alphabet = alphabet
        self.nullable, begin, end = self._add(node)
        self._begin, self._end = frozenset(begin), frozenset(end)
        self.first = sum_of(self._sets[position] for position in begin)
        self._steps: dict[Place, list[tuple[int, Place]]] = {}

    def accepts(self, place: Place) -> bool:
        """Whether a text that is not empty may end at a place."""
        return bool(place & self._end)

    def steps(self, place: Place) -> list[tuple[int, Place]]:
        """The steps from a place: disjoint sets of characters, each with the place after it."""
        if place not in self._steps:
            nexts = set().union(*(self._follow[at] for at in place)) if place else set(self._begin)
            parts: list[tuple[int, frozenset[int]]] = []
            for position in nexts:
                parts = list(_refined(parts, self._sets[position], position))
            self._steps[place] = parts
        return self._steps[place]

    def _add(self, node: Node) -> tuple[bool, set[int], set[int]]:
        """Add a node. Returns whether it is nullable, its first and its last positions."""
        match node:
            case Chars():
                if len(self._sets) >= _MOST_POSITIONS:
                    raise OverflowError
                self._sets.append(self._alphabet.bits(node))
                self._follow.append(set())
                return False, {len(self._sets) - 1}, {len(self._sets) - 1}
            case Seq(items):
                return self._chain(map(self._add, items))
            case Alt(items):
                parts = [self._add(item) for item in items]
                return (
                    any(nullable for nullable, _, _ in parts),
                    set().union(*(begin for _, begin, _ in parts)),
                    set().union(*(end for _, _, end in parts)),
                )
            case Repeat(item, low, high):
                return self._chain(self._copies(item, low, high))
        raise TypeError(f"{node!r} is not regular")

    def _copies(
        self, item: Node, low: int, high: int | None
    ) -> Iterator[tuple[bool, set[int], set[int]]]:
        loops = high is None or high > _COPIES
        for place in range(min(low, 1) if loops else high or 0):
            nullable, begin, end = self._add(item)
            if loops:
                self._join(end, begin)
            yield nullable or place >= low, begin, end
        if loops and not low:
            _, begin, end = self._add(item)
            self._join(end, begin)
            yield True, begin, end

    def _chain(
        self, parts: Iterable[tuple[bool, set[int], set[int]]]
    ) -> tuple[bool, set[int], set[int]]:
        nullable, begin, end = True, set[int](), set[int]()
        for part_nullable, part_begin, part_end in parts:
            self._join(end, part_begin)
            if nullable:
                begin |= part_begin
            end = (end | part_end) if part_nullable else part_end
            nullable = nullable and part_nullable
        return nullable, begin, end

    def _join(self, end: set[int], begin: set[int]) -> None:
        for position in end:
            self._follow[position] |= begin


def sum_of(sets: Iterable[int]) -> int:
    """The union of sets of characters."""
    return reduce(or_, sets, 0)


def extensions(automata: Mapping[K, Automaton]) -> dict[tuple[K, K], int]:
    """The characters that continue a text of one automaton inside of another, by their keys.

    It walks through all automata at once, because a grammar may have hundreds.

    Raises:
        OverflowError: that takes too many states.
    """
    found: dict[tuple[K, K], int] = {}
    start = frozenset((key, Place()) for key in automata)
    seen, queue = {start}, [start]
    while queue:
        state = queue.pop()
        parts: list[tuple[int, frozenset[tuple[K, Place]]]] = []
        begun: dict[K, int] = {}
        for key, place in state:
            for bits, to in automata[key].steps(place):
                begun[key] = begun.get(key, 0) | bits
                if len(state) == 1:  # the steps of one automaton are disjoint
                    parts.append((bits, frozenset({(key, to)})))
                else:
                    parts = list(_refined(parts, bits, (key, to)))
        for key in (key for key, place in state if automata[key].accepts(place)):
            for other, bits in begun.items():
                found[key, other] = found.get((key, other), 0) | bits
        new = {to for _, to in parts} - seen
        seen |= new
        queue += new
        if len(seen) > _MOST_STATES:
            raise OverflowError
    return found


def _refined(
    parts: list[tuple[int, frozenset[T]]], bits: int, one: T
) -> Iterator[tuple[int, frozenset[T]]]:
    """Divide `parts` so that each lies inside or outside of `bits`; add `one` inside."""
    for have, to in parts:
        if have & bits:
            yield have & bits, to | {one}
        if have & ~bits:
            yield have & ~bits, to
        bits &= ~have
    if bits:
        yield bits, frozenset({one})


def regex(node: Node) -> str:
    """A regular node in Rust's syntax of regular expressions. Has no slash."""
    match node:
        case Chars(ranges):
            if node == ANY:
                return "(?s:.)"
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return _escaped(ranges[0][0])
            return f"[{''.join(f'{_escaped(lo)}-{_escaped(hi)}' for lo, hi in ranges)}]"
        case Seq(items):
            return "".join(map(regex, items))
        case Alt(items):
            return f"(?:{'|'.join(map(regex, items))})"
        case Repeat(item, low, high):
            return f"(?:{regex(item)}){counts(low, high)}"
    raise TypeError(f"{node!r} is not regular")


def counts(low: int, high: int | None) -> str:
    """A count as regular expressions and Lark write it."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return short.get((low, high)) or f"{{{low},{'' if high is None else high}}}"


def _escaped(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"
