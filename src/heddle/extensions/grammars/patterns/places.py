"""Places of outputs in a regular expression, and keys by which their masks are equal.

A counting expression such as `([a-z]{2,9} ){900,}` has a new state after each token, but few
different masks: no token is long enough to use up 900 words. So a count that no token can use up
counts as infinite in a key, and parts that no token can reach are left out.

A place is a set of terms: the rest of the expression may be any of them (partial derivatives,
Antimirov 1996, doi:10.1016/0304-3975(95)00182-4).
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from heddle.extensions.grammars.patterns.syntax import MOST, Chars, UndecidedError, leaves, parse

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from heddle.extensions.grammars.patterns.syntax import Group, Node, Term

_MOST_TERMS = 32
"""Terms of a place. An ambiguous expression may have more; then its places have no keys."""

_MOST_KEPT = 64
"""Tokens of an output that can be taken back."""

_MOST_STEPS = 20_000
"""Remembered steps of nodes. Beyond this number, all are forgotten."""

Place: TypeAlias = "frozenset[Term]"

_ENDED: Place = frozenset({()})


class Pattern:
    """A regular expression over a model's tokens."""

    def __init__(self, group: Group, tokens: Sequence[bytes]) -> None:
        """`tokens` are sorted by length, the longest first."""
        self.begin: Place = frozenset(group.terms)
        self._reach = _longest(group, tokens)
        self._steps: dict[tuple[Node, str], Place] = {}

    @classmethod
    def read(cls, text: str, tokens: Sequence[bytes]) -> Pattern | None:
        """The pattern of a regular expression; None if its syntax is unknown."""
        group = parse(text)
        return None if group is None else cls(group, tokens)

    def after(self, place: Place, text: str) -> Place | None:
        """The place after more text; None if it cannot be told."""
        try:
            for character in text:
                place = self._after(place, character)
                if not 0 < len(place) <= _MOST_TERMS:
                    return None
        except UndecidedError:
            return None
        return place

    def key(self, place: Place) -> Hashable | None:
        """Places with equal keys have equal masks. None: this place has no key.

        Where only one byte may come next, llguidance allows only the first token of the complete
        forced text. This text may be longer than a token, so these places have no keys.
        """
        first = 0
        for term in place:
            first |= _first(term)
        if first & (first - 1) == 0:
            return None
        return frozenset(self._bounded(term) for term in place)

    def _bounded(self, term: Term) -> Term:
        """The part of a term that a token can reach."""
        reach = self._reach
        parts = []
        for node, low, high in term:
            most = reach // max(node.least, 1) + 2
            parts.append((node, min(low, most), high if high <= most else MOST))
            reach -= low * node.least
            if reach < 0:
                break
        return tuple(parts)

    def _after(self, terms: Iterable[Term], character: str) -> Place:
        """The place after the character; only a part of it if it is too much for a place."""
        found: set[Term] = set()
        for term in terms:
            for place, (node, low, high) in enumerate(term):
                heads = self._steps.get((node, character))
                if heads is None:
                    heads = self._step(node, character)
                if heads:
                    rest = term[place + 1 :]
                    if high > 1:
                        fewer = high if high == MOST else high - 1
                        rest = ((node, low - 1 if low else 0, fewer), *rest)
                    found.update([head + rest for head in heads])
                if low:
                    break
            if len(found) > _MOST_TERMS:
                break
        return frozenset(found)

    def _step(self, node: Node, character: str) -> Place:
        """The rest of one repetition of a node after its first character."""
        if isinstance(node, Chars):
            found: Place = _ENDED if character in node else frozenset()
        else:
            found = self._after(node.terms, character)
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[node, character] = found
        return found


class PatternMatcher:
    """Follows one output in a pattern."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        # Places after the last tokens, each with the bytes of an incomplete character.
        self._places: deque[tuple[Place | None, bytes]] = deque([(pattern.begin, b"")], _MOST_KEPT)

    def push(self, token: bytes | None) -> None:
        """Append a token to the output. None: a token without text."""
        place, begun = self._places[-1]
        if place is None or token is None:
            place = None
        elif begun or not token.isascii():
            place, begun = self._decoded(place, begun + token)
        else:
            place = self._pattern.after(place, token.decode("ascii"))
        self._places.append((place, begun))

    def rewind(self, count: int) -> None:
        """Take back the last `count` tokens."""
        for _ in range(min(count, len(self._places))):
            self._places.pop()
        if not self._places:
            self._places.append((None, b""))

    def key(self) -> Hashable | None:
        """The key of the output's place; None if it has none. See `Pattern.key`."""
        place, begun = self._places[-1]
        return None if place is None or begun else self._pattern.key(place)

    def _decoded(self, place: Place, data: bytes) -> tuple[Place | None, bytes]:
        try:
            text, size = utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            return None, b""
        return self._pattern.after(place, text), data[size:]


def _first(term: Term) -> int:
    """The ASCII characters that a term's texts may begin with, as bits."""
    found = 0
    for node, low, _ in term:
        if isinstance(node, Chars):
            found |= node.ascii
        else:
            for inner in node.terms:
                found |= _first(inner)
        if low:
            break
    return found


def _longest(group: Group, tokens: Sequence[bytes]) -> int:
    """Bytes of the longest token that a part of the pattern's text may be, or more."""
    ascii = 0
    for chars in leaves(group):
        ascii |= chars.ascii
    possible = bytes(code for code in range(256) if code >= 128 or ascii >> code & 1)
    return next((len(token) for token in tokens if not token.translate(None, possible)), 0)
