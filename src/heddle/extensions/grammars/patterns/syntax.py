"""Reads the common part of Rust's regular expressions into a tree.

`parse` refuses all syntax that it is not sure of. The grammar then works without the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from string import ascii_letters, digits, punctuation
from typing import TypeAlias
from unicodedata import category

MOST = 1 << 62
"""A count without bound."""


_DEEPEST = 50
"""Groups inside of each other."""

_MOST_ITEMS = 500
"""Characters, sets and groups of an expression, which bound the work for a character."""


class UndecidedError(Exception):
    """Unicode's versions may differ about a character."""


class Chars:
    """A set of characters.

    Attributes:
        ascii: a bit for each of the 128 ASCII characters in the set.
        least: fewest bytes of a text.
    """

    least = 1

    def __init__(self, ranges: list[tuple[int, int]], classes: str = "", negated: bool = False):
        """`classes` are letters of shorthands: `dws`, and `DWS` for their complements."""
        self._ranges = ranges
        self._classes = classes
        self._negated = negated
        self._known: dict[str, bool] = {}
        self.ascii = sum(1 << code for code in range(128) if chr(code) in self)

    def __contains__(self, character: str) -> bool:
        """
        Raises:
            UndecidedError: the character is not ASCII, and a shorthand's set may contain it.
        """
        found = self._known.get(character)
        if found is None:
            code = ord(character)
            inside = any(low <= code <= high for low, high in self._ranges)
            inside = inside or any(_in_class(one, character) for one in self._classes)
            found = self._known[character] = inside != self._negated
        return found


@dataclass(eq=False, slots=True)
class Group:
    """A choice of terms. Groups are equal if they are the same object."""

    terms: tuple[Term, ...]
    least: int  # fewest bytes of a text


Node: TypeAlias = Chars | Group
Repeated: TypeAlias = tuple[Node, int, int]
"""A node from `low` to `high` times."""
Term: TypeAlias = tuple[Repeated, ...]
"""A sequence."""


def parse(pattern: str) -> Group | None:
    """The tree of a regular expression; None if it has syntax that this module does not know."""
    try:
        return _Parser(pattern).whole()
    except _UnknownError:
        return None


def leaves(group: Group) -> list[Chars]:
    """All sets of characters in a tree."""
    found: list[Chars] = []
    stack: list[Node] = [group]
    while stack:
        node = stack.pop()
        if isinstance(node, Chars):
            found.append(node)
        else:
            stack += [item for term in node.terms for item, _, _ in term]
    return found


def least_bytes(term: Term) -> int:
    """Fewest bytes of a term's text."""
    return sum(node.least * low for node, low, _ in term)


def _group(terms: list[Term]) -> Group:
    return Group(tuple(terms), min(map(least_bytes, terms)))


def _in_class(letter: str, character: str) -> bool:
    if letter.isupper():
        return not _in_class(letter.lower(), character)
    if character.isascii():
        return character in _ASCII[letter]
    kind = category(character)
    if letter == "s":
        return kind[0] == "Z" or character == "\x85"
    # Sets of later Unicode versions contain characters that this version does not know. Some
    # symbols and invisible characters count as letters.
    if kind[0] == "C" or kind == "So":
        raise UndecidedError
    return kind == "Nd" if letter == "d" else kind[0] in "LM" or kind in ("Nd", "Nl", "Pc")


_ASCII = {"d": digits, "w": ascii_letters + digits + "_", "s": "\t\n\v\f\r "}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_COUNTS = {"*": (0, MOST), "+": (1, MOST), "?": (0, 1)}
_UNKNOWN = frozenset("*+?{}^$])")
"""Characters that are no literals: anchors, and characters out of place."""


class _UnknownError(Exception):
    pass


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._rest = list(reversed(pattern))
        self._depth = 0
        self._items = 0

    def whole(self) -> Group:
        group = self._choice()
        if self._rest:
            raise _UnknownError
        return group

    def _choice(self) -> Group:
        terms = [self._sequence()]
        while self._takes("|"):
            terms.append(self._sequence())
        return _group(terms)

    def _sequence(self) -> Term:
        items: list[Repeated] = []
        while self._rest and self._rest[-1] not in "|)":
            node = self._atom()
            low, high = self._counts()
            items.append((node, low if node.least else 0, high))
            self._items += 1
            if self._items > _MOST_ITEMS:
                raise _UnknownError
        return tuple(items)

    def _atom(self) -> Node:
        first = self._next()
        if first == "(":
            if self._takes("?") and not self._takes(":"):
                raise _UnknownError
            self._depth += 1
            if self._depth > _DEEPEST:
                raise _UnknownError
            group = self._choice()
            self._depth -= 1
            self._require(")")
            return group
        if first == "[":
            return self._class()
        if first == ".":
            return Chars([(10, 10)], negated=True)
        if first == "\\":
            character, letter = self._escape()
            return Chars(_single(character), letter)
        if first in _UNKNOWN:
            raise _UnknownError
        return Chars(_single(first))

    def _counts(self) -> tuple[int, int]:
        low, high = 1, 1
        if self._rest and self._rest[-1] in _COUNTS:
            low, high = _COUNTS[self._next()]
        elif self._takes("{"):
            low = high = self._number()
            if self._takes(","):
                high = MOST if self._rest[-1:] == ["}"] else self._number()
            self._require("}")
        else:
            return low, high
        if not 0 < high >= low or (self._rest and self._rest[-1] in "*+?{"):
            raise _UnknownError  # also lazy repetition
        return low, high

    def _class(self) -> Chars:
        negated = self._takes("^")
        items: list[tuple[str, str]] = []  # a character or the letter of a shorthand
        ranges: list[tuple[int, int]] = []
        source: list[str] = []  # to find operators
        while not self._takes("]"):
            source += self._rest[-1:]
            character = self._next()
            if character == "[" or (character == "-" and items and self._rest[-1:] != ["]"]):
                raise _UnknownError
            item = self._escape() if character == "\\" else (character, "")
            items.append(item)
            if self._rest[-1:] == ["-"] and self._rest[-2:-1] != ["]"]:
                self._next()
                ranges.append((_code(item), _code(self._end_of_range())))
        if not items or any(a == b and a in "&~-" for a, b in pairwise(source)):
            raise _UnknownError
        if any(low > high for low, high in ranges):
            raise _UnknownError
        ranges += [one for character, _ in items for one in _single(character)]
        return _checked(Chars(ranges, "".join(letter for _, letter in items), negated))

    def _end_of_range(self) -> tuple[str, str]:
        character = self._next()
        if character in "[-":
            raise _UnknownError
        return self._escape() if character == "\\" else (character, "")

    def _escape(self) -> tuple[str, str]:
        """A character and "", or "" and the letter of a shorthand."""
        letter = self._next()
        if letter in "dwsDWS":
            return "", letter
        if letter in _CONTROLS:
            return _CONTROLS[letter], ""
        if letter == "x":
            return chr(int(self._hexadecimal(2), 16)), ""
        if letter not in punctuation:
            raise _UnknownError
        return letter, ""

    def _hexadecimal(self, count: int) -> str:
        text = "".join(self._next() for _ in range(count))
        if not all(one in "0123456789abcdefABCDEF" for one in text):
            raise _UnknownError
        return text

    def _number(self) -> int:
        text = ""
        while self._rest and self._rest[-1] in digits:
            text += self._next()
        if not 0 < len(text) < 10:
            raise _UnknownError
        return int(text)

    def _next(self) -> str:
        if not self._rest:
            raise _UnknownError
        return self._rest.pop()

    def _takes(self, character: str) -> bool:
        if self._rest[-1:] != [character]:
            return False
        self._rest.pop()
        return True

    def _require(self, character: str) -> None:
        if not self._takes(character):
            raise _UnknownError


def _single(character: str) -> list[tuple[int, int]]:
    return [(ord(character), ord(character))] if character else []


def _code(item: tuple[str, str]) -> int:
    if item[1]:
        raise _UnknownError  # a shorthand bounds no range
    return ord(item[0])


def _checked(chars: Chars) -> Chars:
    """`chars`, if it surely contains a character."""
    if not chars.ascii:
        raise _UnknownError
    return chars
