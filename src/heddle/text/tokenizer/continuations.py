"""Finds the tokens that can continue a word or a prompt, by their bytes.

A prompt may end inside a token ("retu"). Its last tokens then differ from the tokens of the longer
text ("return"), and such tokens are rare in training data. Token healing removes the prompt's last
tokens, and samples in their place only tokens that agree with the removed bytes (Lundberg, "The Art
of Prompt Design: Prompt Boundaries and Token Healing", 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_HEALED_TOKENS = 4
"""Most tokens that healing removes. Words rarely have more tokens."""


class TokenBytes(Protocol):
    """The methods of a tokenizer that `Continuations` uses."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token adds to a text; none for special tokens."""
        ...


class Continuations:
    """Finds the token ids that cannot continue a text. Safe to share between threads.

    The first use sorts the vocabulary: 0.2 s for 152,000 tokens.
    """

    def __init__(self, tokenizer: TokenBytes, vocabulary: int) -> None:
        """`vocabulary` is the number of logits. The tokenizer may have more tokens or fewer."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    @cached_property
    def not_in_word(self) -> tuple[int, ...]:
        """Tokens that do not begin with a letter, a digit, `_`, or a UTF-8 continuation byte."""
        return self._all_except(token for piece, token in self._sorted if _continues_word(piece))

    def disagreeing(self, wanted: bytes) -> tuple[int, ...]:
        """Tokens that cannot be the first token of a text that begins with `wanted`.

        A token agrees if it begins with `wanted`. It also agrees if `wanted` begins with it and
        other tokens can spell the rest: some vocabularies lack bytes. `wanted` must not be empty.
        """
        agreeing: list[int] = []
        spellable: list[int] = []  # positions in `wanted` from which tokens can spell the rest
        for start in reversed(range(len(wanted))):
            agreeing = [token for _, token in self._beginning_with(wanted[start:])]
            for end in spellable:
                agreeing += self._equal_to(wanted[start:end])
            if agreeing:
                spellable.append(start)
        return self._all_except(agreeing)

    def unfinished(self, tokens: Sequence[int]) -> int:
        """How many tokens healing removes: the longest end of `tokens` with which a longer token
        begins.

        The first token always stays, because a prompt needs a token.
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

    def _all_except(self, tokens: Iterable[int]) -> tuple[int, ...]:
        left_out = set(tokens)
        return tuple(token for token in range(self._vocabulary) if token not in left_out)


def _continues_word(piece: bytes) -> bool:
    if piece[0] & 0xC0 == 0x80:  # a UTF-8 continuation byte
        return True
    first = piece[:4].decode(errors="ignore")[:1]
    return first.isalnum() or first == "_"
