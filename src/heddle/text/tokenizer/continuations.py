"""Finds the tokens that can continue a word, a line or a prompt, by their bytes.

A prompt may end inside a token ("retu"). Its last tokens then differ from the tokens of the longer
text ("return"), and such tokens are rare in training data. Token healing removes the prompt's last
tokens, and samples in their place only tokens that agree with the removed bytes (Lundberg, "The Art
of Prompt Design: Prompt Boundaries and Token Healing", 2023).
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        self.not_in_word = lru_cache(maxsize=8)(self._not_in_word)

    @cached_property
    def without_text(self) -> tuple[int, ...]:
        """Control tokens and unused tokens."""
        return self._all_except(token for _, token in self._pieces())

    @cached_property
    def breaking(self) -> tuple[int, ...]:
        """Tokens with the end of a line."""
        return tuple(token for piece, token in self._pieces() if _breaks(piece))

    def breaking_after(self, known: bytes) -> tuple[int, ...]:
        """Tokens that begin with `known` and have the end of a line after it."""
        longer = self._beginning_with(known)
        return tuple(token for piece, token in longer if _breaks(piece[len(known) :]))

    def _not_in_word(self, marks: str) -> tuple[int, ...]:
        """Tokens that do not begin with a letter, a digit, `_`, or a UTF-8 continuation byte.

        A token that begins with one of `marks` continues a word too, if such a character, or
        nothing, follows the mark.
        """
        return self._all_except(
            token for piece, token in self._sorted if _continues_word(piece, marks)
        )

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
        return sorted(self._pieces())

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        for token in range(min(self._vocabulary, self._tokenizer.vocabulary_size)):
            if piece := self._tokenizer.token_bytes(token):
                yield piece, token

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


def beyond(known: bytes, piece: bytes) -> str:
    """The complete characters of `piece` after `known`; empty if `piece` is not longer.

    The longer of the two begins with the shorter one.
    """
    decode = codecs.getincrementaldecoder("utf-8")
    shown = decode("replace").decode(known)
    return decode("replace").decode(piece)[len(shown) :]


def line_end(text: str) -> int | None:
    """The place at which the first line of `text` ends; None if it does not end."""
    return min((at for at in map(text.find, "\r\n") if at >= 0), default=None)


def _breaks(piece: bytes) -> bool:
    return b"\n" in piece or b"\r" in piece


def _continues_word(piece: bytes, marks: str) -> bool:
    if piece[0] & 0xC0 == 0x80:  # a UTF-8 continuation byte
        return True
    text = piece[:8].decode(errors="ignore")
    if text and text[0] in marks:
        text = text[1:] or "_"
    return text[:1].isalnum() or text[:1] == "_"
