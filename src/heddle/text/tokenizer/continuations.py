"""Which tokens may come next, told by their bytes: what goes on with a word or a prompt.

A prompt that ends inside a token ("retu") has been cut into tokens that a text which goes on
("return") would not have there, and a model has hardly seen them. So the last tokens are taken
back, and what may be sampled in their place is what agrees with their bytes: token healing, as in
Lundberg, "The Art of Prompt Design: Prompt Boundaries and Token Healing" (2023).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_HEALED_TOKENS = 4
"""Tokens that are taken back at most: words are rarely cut into more."""


class Pieces(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token adds to a text; none for special tokens."""
        ...


class Continuations:
    """Token ids that do not continue a text as wanted. Safe to share between threads.

    What it looks up is sorted when first needed: 0.2 s for a vocabulary of 152,000.
    """

    def __init__(self, tokenizer: Pieces, vocabulary: int) -> None:
        """`vocabulary` is how many tokens the model knows, which may be more or fewer."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    @cached_property
    def not_in_word(self) -> tuple[int, ...]:
        """Tokens that do not begin with a letter, a digit, `_`, or the rest of a character."""
        return self._all_but(token for piece, token in self._sorted if _goes_on_with_word(piece))

    def disagreeing(self, wanted: bytes) -> tuple[int, ...]:
        """Tokens with which a text that begins with `wanted` cannot begin.

        What agrees begins with `wanted`, or is a beginning of it whose rest can be had in tokens:
        not all vocabularies have all bytes. `wanted` is not empty.
        """
        agreeing: list[int] = []
        spellable: list[int] = []  # positions from where the rest can be had
        for start in reversed(range(len(wanted))):
            agreeing = [token for _, token in self._beginning_with(wanted[start:])]
            for end in spellable:
                agreeing += self._equal_to(wanted[start:end])
            if agreeing:
                spellable.append(start)
        return self._all_but(agreeing)

    def unfinished(self, tokens: Sequence[int]) -> int:
        """How many tokens to take back: the most at the end that a longer token begins with.

        At least the first one stays, or nothing would be left to go on from.
        """
        tail = b""
        longest = 0
        for count, token in enumerate(reversed(tokens[1:][-MAX_HEALED_TOKENS:]), 1):
            piece = self._tokenizer.token_bytes(token)
            if not piece:
                break
            tail = piece + tail
            if any(len(longer) > len(tail) for longer, _ in self._beginning_with(tail)):
                longest = count
        return longest

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        known = range(min(self._vocabulary, self._tokenizer.vocabulary_size))
        pieces = ((self._tokenizer.token_bytes(token), token) for token in known)
        return sorted(pair for pair in pieces if pair[0])

    def _beginning_with(self, wanted: bytes) -> list[tuple[bytes, int]]:
        first = last = bisect_left(self._sorted, (wanted, -1))
        while last < len(self._sorted) and self._sorted[last][0].startswith(wanted):
            last += 1
        return self._sorted[first:last]

    def _equal_to(self, wanted: bytes) -> list[int]:
        first = bisect_left(self._sorted, (wanted, -1))
        last = bisect_left(self._sorted, (wanted, self._vocabulary))
        return [token for _, token in self._sorted[first:last]]

    def _all_but(self, wanted: Iterable[int]) -> tuple[int, ...]:
        kept = set(wanted)
        return tuple(token for token in range(self._vocabulary) if token not in kept)


def _goes_on_with_word(piece: bytes) -> bool:
    if piece[0] & 0xC0 == 0x80:  # the rest of a character in UTF-8
        return True
    first = piece[:4].decode(errors="ignore")[:1]
    return first.isalnum() or first == "_"
