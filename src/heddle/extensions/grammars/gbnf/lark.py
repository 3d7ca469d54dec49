"""Translates GBNF to Lark for llguidance.

llguidance reads text with a lexer that takes the longest match and never goes back. GBNF has no
lexer. So a part of a grammar becomes one regular expression only if this changes nothing: no text
of the part may be continued both inside of a regular expression and by what follows the part. Other
parts are divided, down to single characters. The expressions should be large: to make a mask,
llguidance walks through the vocabulary, and its lexer is much faster than its parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from heddle.extensions.grammars.gbnf.regular import (
    Alphabet,
    Automaton,
    counts,
    extensions,
    regex,
    sum_of,
)
from heddle.extensions.grammars.gbnf.syntax import (
    Alt,
    Chars,
    Ref,
    Repeat,
    Seq,
    Token,
    map_refs,
    parse,
    refs,
    used_by_root,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from heddle.extensions.grammars.gbnf.syntax import Node

_MOST_EXPANDED = 2_000
"""Most characters and classes of a rule that is written out where it is used."""
_MOST_DIVISIONS = 200


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular node that the lexer reads at once. Its text is not empty."""

    node: Node


@dataclass(frozen=True, slots=True)
class Several:
    """A sequence or a choice of divided nodes."""

    items: tuple[Divided, ...]
    is_choice: bool


@dataclass(frozen=True, slots=True)
class Repeated:
    """A divided node from `low` to `high` times."""

    item: Divided
    low: int
    high: int | None


Divided = Lexeme | Token | Ref | Several | Repeated
"""A node whose regular parts are lexemes."""


class Tokens(Protocol):
    """The facts of a model's tokens that the translation needs."""

    @property
    def eos_ids(self) -> Collection[int]: ...
    def control_id(self, text: str, /) -> int | None: ...


def lark(text: str, tokens: Tokens) -> str:
    """A grammar in llguidance's Lark, with the rule `start`, that matches what GBNF matches.

    `tokens` are the model's tokens, for references to them.

    Raises:
        ValueError: the syntax is wrong, or the grammar has a form that Heddle does not support.
    """
    rules = {name: _without_tail(name, node) for name, node in parse(text).items()}
    bodies = _written_out(rules)
    alphabet = Alphabet(chars for node in bodies.values() for chars in _chars(node))
    divided: set[Node] = set()
    for _ in range(_MOST_DIVISIONS):
        lowered = {name: _divide(node, divided) for name, node in bodies.items()}
        conflicts = _Conflicts(lowered, alphabet).find()
        if not conflicts:
            return "\n".join(_Text(lowered, tokens).lines())
        divided |= conflicts
    raise ValueError("it is too ambiguous; write a simpler grammar")


# --- rules ---------------------------------------------------------------------------------------


def _without_tail(name: str, node: Node) -> Node:
    """A rule that refers to itself only at the end of alternatives, as a repetition instead.

    `ws ::= ([ \\t] ws)?` becomes `ws ::= [ \\t]*`.
    """
    again, once = [], []
    for items in _sequences(node):
        if items and items[-1] == Ref(name):
            again.append(Seq(items[:-1]))
        else:
            once.append(Seq(items))
    if not again or not once or any(_mentions(one, name) for one in (*again, *once)):
        return node
    return Seq((Repeat(Alt(tuple(again)), 0, None), Alt(tuple(once))))


def _sequences(node: Node) -> Iterator[tuple[Node, ...]]:
    """The alternatives of a node, each as a sequence."""
    match node:
        case Alt(items):
            for item in items:
                yield from _sequences(item)
        case Repeat(item, 0, 1):
            yield from _sequences(item)
            yield ()
        case Seq(items):
            yield items
        case _:
            yield (node,)


def _mentions(node: Node, name: str) -> bool:
    return any(part == Ref(name) for part in _parts(node))


def _parts(node: Node) -> Iterator[Node]:
    """A node and all nodes inside of it."""
    yield node
    if isinstance(node, Seq | Alt):
        for item in node.items:
            yield from _parts(item)
    if isinstance(node, Repeat):
        yield from _parts(node.item)


def _chars(node: Node) -> Iterator[Chars]:
    return (part for part in _parts(node) if isinstance(part, Chars))


def _written_out(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The rules that `root` needs. Small regular rules are written out where they are used."""
    used = used_by_root(rules)
    left = {name: node for name, node in rules.items() if name in used}
    small: dict[str, Node] = {}
    large: dict[str, Node] = {}
    while new := {name: node for name, node in left.items() if _may_be_small(name, node, small)}:
        for name, node in new.items():
            del left[name]
            written = map_refs(node, small.__getitem__)
            if sum(1 for _ in _chars(written)) <= _MOST_EXPANDED:
                small[name] = written
            else:
                large[name] = node
    left |= large
    return {
        name: map_refs(node, lambda one: small.get(one, Ref(one))) for name, node in left.items()
    }


def _may_be_small(name: str, node: Node, small: Mapping[str, Node]) -> bool:
    is_regular = not any(isinstance(part, Token) for part in _parts(node))
    return name != "root" and is_regular and refs(node) <= small.keys()


# --- lexemes -------------------------------------------------------------------------------------


def _divide(node: Node, divided: set[Node]) -> Divided:
    """Make lexemes of the largest regular parts of a node that are not in `divided`."""
    if isinstance(node, Token | Ref):
        return node
    if isinstance(node, Chars) or (_is_regular(node) and node not in divided):
        if not any(_chars(node)):
            return Several((), is_choice=False)
        lexeme = Lexeme(node)
        return Repeated(lexeme, 0, 1) if _is_nullable(node) else lexeme
    if isinstance(node, Repeat):
        return Repeated(_divide(node.item, divided), node.low, node.high)
    items = node.items if node in divided else _grouped(node)
    return Several(tuple(_divide(item, divided) for item in items), isinstance(node, Alt))


def _grouped(node: Seq | Alt) -> tuple[Node, ...]:
    """The items of a node. Its regular items, those of a sequence next to one another, are one."""
    if isinstance(node, Alt):
        regular = tuple(filter(_is_regular, node.items))
        others = tuple(item for item in node.items if not _is_regular(item))
        return (Alt(regular), *others) if len(regular) > 1 else node.items
    grouped: list[Node] = []
    for is_regular, run in groupby(node.items, _is_regular):
        items = tuple(run)
        grouped += (Seq(items),) if is_regular and len(items) > 1 else items
    return tuple(grouped)


def _is_regular(node: Node) -> bool:
    return not any(isinstance(part, Ref | Token) for part in _parts(node))


def _is_nullable(node: Node) -> bool:
    match node:
        case Seq(items):
            return all(map(_is_nullable, items))
        case Alt(items):
            return any(map(_is_nullable, items))
        case Repeat(item, low):
            return low == 0 or _is_nullable(item)
    return False


class _Conflicts:
    """Finds lexemes that the lexer would read too far."""

    def __init__(self, rules: Mapping[str, Divided], alphabet: Alphabet) -> None:
        self._rules = rules
        self._alphabet = alphabet
        self._automata: dict[Lexeme, Automaton | None] = {}
        self._after: dict[Lexeme, int] = {}
        self._nullable: dict[str, bool] = dict.fromkeys(rules, False)
        self._first: dict[str, int] = dict.fromkeys(rules, 0)
        self._follow: dict[str, int] = dict.fromkeys(rules, 0)

    def find(self) -> set[Node]:
        """The nodes of the lexemes to divide.

        Raises:
            ValueError: the grammar is too large.
        """
        while self._grows_first():
            pass
        while self._grows_follow():
            pass
        found = {lexeme.node for lexeme, one in self._automata.items() if one is None}
        known = {lexeme: one for lexeme, one in self._automata.items() if one is not None}
        try:
            longer = extensions(known)
        except OverflowError:
            raise ValueError("it is too large; write a simpler grammar") from None
        return found | {
            other.node for (lexeme, other), bits in longer.items() if bits & self._after[lexeme]
        }

    def _grows_first(self) -> bool:
        """Find what the rules begin with. Returns whether a rule has changed."""
        before = dict(self._nullable), dict(self._first)
        for name, node in self._rules.items():
            self._nullable[name] |= self._is_nullable(node)
            self._first[name] |= self._begin(node)
        return before != (self._nullable, self._first)

    def _grows_follow(self) -> bool:
        """Find what may follow rules and lexemes. Returns whether it has changed."""
        before = dict(self._follow), dict(self._after)
        for name, node in self._rules.items():
            self._walk(node, self._follow[name])
        return before != (self._follow, self._after)

    def _walk(self, node: Divided, after: int) -> None:
        match node:
            case Lexeme():
                self._after[node] = self._after.get(node, 0) | after
            case Ref(name):
                self._follow[name] |= after
            case Repeated(item, _, high):
                self._walk(item, after if high == 1 else after | self._begin(item))
            case Several(items, is_choice):
                for item in reversed(items):
                    self._walk(item, after)
                    if not is_choice:
                        rest = after if self._is_nullable(item) else 0
                        after = self._begin(item) | rest

    def _is_nullable(self, node: Divided) -> bool:
        match node:
            case Ref(name):
                return self._nullable[name]
            case Repeated(item, low, _):
                return low == 0 or self._is_nullable(item)
            case Several(items, is_choice):
                return (any if is_choice else all)(map(self._is_nullable, items))
        return False

    def _begin(self, node: Divided) -> int:
        match node:
            case Lexeme():
                automaton = self._automaton(node)
                return self._alphabet.everything if automaton is None else automaton.first
            case Ref(name):
                return self._first[name]
            case Repeated(item):
                return self._begin(item)
            case Several(items, True):
                return sum_of(map(self._begin, items))
            case Several(items, False):
                bits = 0
                for item in items:
                    bits |= self._begin(item)
                    if not self._is_nullable(item):
                        break
                return bits
        return 0

    def _automaton(self, lexeme: Lexeme) -> Automaton | None:
        """The automaton of a lexeme; None if it is too large."""
        if lexeme not in self._automata:
            try:
                self._automata[lexeme] = Automaton(lexeme.node, self._alphabet)
            except OverflowError:
                self._automata[lexeme] = None
        return self._automata[lexeme]


# --- text ----------------------------------------------------------------------------------------


class _Text:
    """Writes Lark."""

    def __init__(self, rules: Mapping[str, Divided], tokens: Tokens) -> None:
        self._rules = rules
        self._names = {name: f"r{place}" for place, name in enumerate(rules)} | {"root": "start"}
        self._terminals: dict[Lexeme, str] = {}
        self._tokens = tokens
        self._mentioned: set[int] = set()

    def lines(self) -> list[str]:
        """The rules and the terminals.

        Raises:
            ValueError: the model has no control token of a name.
        """
        for _ in range(2):  # the first time finds all tokens
            lines = [
                f"{self._names[name]}: {self._text(node)}" for name, node in self._rules.items()
            ]
        for lexeme, name in self._terminals.items():
            not_empty = " & /(?s:.+)/" if _is_nullable(lexeme.node) else ""
            lines.append(f"{name}: /{regex(lexeme.node)}/{not_empty}")
        return lines

    def _text(self, node: Divided) -> str:
        match node:
            case Lexeme():
                return self._terminals.setdefault(node, f"T{len(self._terminals)}")
            case Token():
                return self._token(node)
            case Ref(name):
                return self._names[name]
            case Repeated(item, low, high):
                return f"({self._text(item)}){counts(low, high)}" if high != 0 else '""'
            case Several(items, is_choice):
                texts = map(self._text, items)
                return f"({(' | ' if is_choice else ' ').join(texts)})" if items else '""'

    def _token(self, token: Token) -> str:
        """Lark for a token. llguidance needs sets of tokens that are equal or disjoint."""
        id = token.id if isinstance(token.id, int) else self._tokens.control_id(token.id)
        if id is None:
            raise ValueError(f"the model has no control token {token.id}; write its id: <[128]>")
        self._mentioned.add(id)
        if not token.negated:
            return f"<[{id}]>"
        known = self._mentioned.union(self._tokens.eos_ids)
        others = sorted(known - {id, *self._tokens.eos_ids})
        sets = [f"^{','.join(map(str, sorted(known)))}", *map(str, others)]
        return f"({' | '.join(f'<[{one}]>' for one in sets)})"
