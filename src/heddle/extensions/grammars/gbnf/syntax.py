"""Parses GBNF, llama.cpp's form of grammars (its grammars/README.md).

A grammar is a list of rules `name ::= alternatives`. The rule `root` matches the whole output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAST = 0x10FFFF
"""The last code point."""

_SURROGATES = range(0xD800, 0xE000)
_MOST_NESTED = 100
_MOST_COUNT = 10_000

_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+[ \t]*::=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[(\d+)\]|([^<>\s\[\]](?:[^<>\n]*[^<>\s])?))>")
_HEX = {"x": 2, "u": 4, "U": 8}
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character. `ranges` are its first and last code points, in order and disjoint."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        id: its id, or the text of a control token.
        negated: whether it is any other token, except those that end an output.
    """

    id: int | str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """A text that the rule `name` matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """Nodes one after another; no nodes: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several nodes."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node from `low` to `high` times. `high` None: no limit."""

    item: Node
    low: int
    high: int | None


Node = Chars | Token | Ref | Seq | Alt | Repeat


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF. Lark has no `::=`."""
    return _RULE.search(text) is not None


def parse(text: str) -> dict[str, Node]:
    """The rules of a grammar by name.

    Raises:
        ValueError: the syntax is wrong, a rule is missing or defined twice, or the grammar has a
            form that Heddle does not support. Says the line.
    """
    rules = _Parser(text).rules()
    for name, node in rules.items():
        for used in refs(node):
            if used not in rules:
                raise ValueError(f"rule {name!r} uses {used!r}, which is not defined")
    if "root" not in rules:
        raise ValueError("it has no rule 'root'")
    ending = _ending(rules)
    for name in sorted(used_by_root(rules)):
        if name not in ending:
            raise ValueError(f"rule {name!r} matches no text, because it always uses itself")
    return rules


def _ending(rules: Mapping[str, Node]) -> set[str]:
    """The rules that match at least one text."""
    ending: set[str] = set()
    while more := {name for name in rules if _ends(rules[name], ending)} - ending:
        ending |= more
    return ending


def _ends(node: Node, ending: set[str]) -> bool:
    """Whether a node matches a text, if exactly the rules `ending` do."""
    match node:
        case Ref(name):
            return name in ending
        case Seq(items):
            return all(_ends(item, ending) for item in items)
        case Alt(items):
            return any(_ends(item, ending) for item in items)
        case Repeat(item, low):
            return low == 0 or _ends(item, ending)
    return True


def refs(node: Node) -> set[str]:
    """The names of the rules that a node uses directly."""
    match node:
        case Ref(name):
            return {name}
        case Seq(items) | Alt(items):
            return set().union(*map(refs, items))
        case Repeat(item):
            return refs(item)
    return set()


def map_refs(node: Node, change: Callable[[str], Node]) -> Node:
    """A copy of `node` with `change(name)` in place of each reference."""
    match node:
        case Ref(name):
            return change(name)
        case Seq(items):
            return Seq(tuple(map_refs(item, change) for item in items))
        case Alt(items):
            return Alt(tuple(map_refs(item, change) for item in items))
        case Repeat(item, low, high):
            return Repeat(map_refs(item, change), low, high)
    return node


def used_by_root(rules: Mapping[str, Node]) -> set[str]:
    """The rules that the output may need: `root` and all that it uses, directly or not."""
    used, queue = {"root"}, ["root"]
    while queue:
        new = refs(rules[queue.pop()]) - used
        used |= new
        queue += new
    return used


def characters(ranges: list[tuple[int, int]], *, negated: bool = False) -> Chars:
    """A node of one character in `ranges`, or outside of them. Has no surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    if negated:
        starts = [0, *(high + 1 for _, high in merged)]
        ends = [*(low - 1 for low, _ in merged), LAST]
        merged = [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]
    valid = []
    for low, high in merged:
        if low < _SURROGATES.start <= high:
            valid.append((low, _SURROGATES.start - 1))
        elif high < _SURROGATES.start:
            valid.append((low, high))
        if high >= _SURROGATES.stop:
            valid.append((max(low, _SURROGATES.stop), high))
    return Chars(tuple(valid))


ANY = characters([(0, LAST)])


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._space(lines=True)
        while self._at < len(self._text):
            name = self._name("a rule")
            self._space()
            if not self._takes("::="):
                raise self._error(f"expected '::=' after {name!r}")
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice")
            self._space(lines=True)
            rules[name] = self._alternatives(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("expected a new line after a rule")
            self._space(lines=True)
        return rules

    def _alternatives(self, depth: int) -> Node:
        if depth > _MOST_NESTED:
            raise self._error(f"more than {_MOST_NESTED} parentheses are inside of one another")
        items = [self._sequence(depth)]
        while self._bar(nested=depth > 0):
            self._space(lines=True)
            items.append(self._sequence(depth))
        return Alt(tuple(items)) if len(items) > 1 else items[0]

    def _bar(self, *, nested: bool) -> bool:
        """Whether another alternative follows, maybe on the next line. Reads its bar."""
        before = self._at
        self._space(lines=True)
        if self._takes("|"):
            return True
        if not nested:
            self._at = before
        return False

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (item := self._item(depth)) is not None:
            self._space(lines=depth > 0)
            while (repeated := self._repeated(item)) is not None:
                item = repeated
                self._space(lines=depth > 0)
            items += item.items if isinstance(item, Seq) else (item,)
        return Seq(tuple(items)) if len(items) != 1 else items[0]

    def _item(self, depth: int) -> Node | None:
        next = self._text[self._at : self._at + 1]
        if next == '"':
            return self._literal()
        if next == "[":
            return self._class()
        if next == ".":
            self._at += 1
            return ANY
        if next == "(":
            self._at += 1
            self._space(lines=True)
            inner = self._alternatives(depth + 1)
            if not self._takes(")"):
                raise self._error("expected ')'")
            # Keeps a group of several items together, so that a repetition repeats all of it.
            return Alt((inner,)) if isinstance(inner, Seq) else inner
        if next and next in "<!":
            return self._token()
        if _NAME.match(next):
            return Ref(self._name("a rule"))
        return None

    def _repeated(self, item: Node) -> Node | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        next = self._text[self._at : self._at + 1]
        if next in simple:
            self._at += 1
            return Repeat(item, *simple[next])
        if next != "{":
            return None
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            raise self._error("expected a count such as {2}, {2,} or {2,5}")
        low = int(found[1])
        high = (int(found[3]) if found[3] else None) if found[2] else low
        if max(low, high or 0) > _MOST_COUNT:
            raise self._error(f"a count is larger than {_MOST_COUNT:,}")
        if high is not None and high < low:
            raise self._error("the second count is smaller than the first")
        self._at = found.end()
        return Repeat(item, low, high)

    def _literal(self) -> Node:
        self._at += 1
        chars: list[Node] = []
        while not self._takes('"'):
            code = self._character("a text")
            chars.append(characters([(code, code)]))
        return Alt((Seq(tuple(chars)),)) if len(chars) != 1 else chars[0]

    def _class(self) -> Node:
        self._at += 1
        negated = self._takes("^")
        ranges = []
        while not self._takes("]"):
            low = high = self._character("a class of characters")
            if self._text.startswith("-", self._at) and self._text[self._at + 1 :][:1] != "]":
                self._at += 1
                high = self._character("a class of characters")
            if high < low:
                raise self._error("a range ends before it begins")
            ranges.append((low, high))
        node = characters(ranges, negated=negated)
        if not node.ranges:
            raise self._error("a class has no characters")
        return node

    def _token(self) -> Node:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._error("expected a token such as <[128]> or <think>")
        negated, id, name = found.groups()
        self._at = found.end()
        return Token(f"<{name}>" if id is None else int(id), bool(negated))

    def _character(self, where: str) -> int:
        if self._at >= len(self._text):
            raise self._error(f"{where} does not end")
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _PLAIN:
            return ord(_PLAIN[kind])
        digits = self._text[self._at :][: _HEX.get(kind, 0)]
        if kind not in _HEX or not re.fullmatch(rf"[0-9A-Fa-f]{{{_HEX[kind]}}}", digits):
            raise self._error(f"unknown escape \\{kind}")
        self._at += len(digits)
        code = int(digits, 16)
        if code > LAST or code in _SURROGATES:
            raise self._error(f"\\{kind}{digits} is not a character")
        return code

    def _name(self, what: str) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found[0]

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _space(self, *, lines: bool = False) -> None:
        """Skip spaces and comments, and with `lines` the ends of lines."""
        skipped = r"(?:[ \t\r\n]|#[^\r\n]*)*" if lines else r"(?:[ \t]|#[^\r\n]*)*"
        found = re.compile(skipped).match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _error(self, what: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20].partition("\n")[0]
        return ValueError(f"line {line}: {what}" + (f", at {near!r}" if near else ""))
