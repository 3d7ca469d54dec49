"""Strings of a request's sampling parameters as the token sequences that spell them.

What a sampler compares are tokens. A string can come about in more than one way in them: that is
looked up here, before a request is queued, so that no sampler needs a tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.step import TokenSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    Encode: TypeAlias = Callable[[str], list[int]]

MAX_TAIL_TOKENS = 20
"""Tokens of a breaker after its first; as in llama.cpp."""


def spell(encode: Encode, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as it goes on after other text, directly and after a space.

    That is what vLLM's `bad_words` mean, but that it leaves the form with a space out where that
    has another number of tokens. Other spellings, as by single letters, are not covered.
    """
    forms = (form for word in words for form in (word.lstrip(), " " + word.lstrip()))
    return tuple(dict.fromkeys(tuple(encode(form)) for form in forms))


def find_breakers(
    pieces: Sequence[bytes], encode: Encode, strings: tuple[str, ...]
) -> TokenSequences:
    """All token sequences whose text has one of the strings in it, beginning in the first token.

    One token may hold the whole string; else its end is the string's beginning and the others are
    the tokens of the rest, at most `MAX_TAIL_TOKENS` (llama.cpp, PR 9702).

    Args:
        pieces: the bytes of each token.
        encode: tokens of text that goes on after other text.
        strings: not empty.
    """
    found: dict[tuple[int, ...], None] = {}
    for string in strings:
        wanted = string.encode(errors="replace")
        first = wanted[0]
        tails: dict[int, tuple[int, ...]] = {}  # by how many bytes of the string come before
        for token, piece in enumerate(pieces):
            if first not in piece:
                continue
            if wanted in piece:
                found[(token,)] = None
                continue
            for length in _overlaps(piece, wanted):
                if length not in tails:
                    tails[length] = _tail(encode, wanted[length:])
                if tails[length]:
                    found[(token, *tails[length])] = None
    return TokenSequences(tuple(found))


def _overlaps(piece: bytes, wanted: bytes) -> Iterator[int]:
    """Lengths of the ends of `piece` that begin `wanted`."""
    start = piece.find(wanted[0])
    while start >= 0:
        if wanted.startswith(piece[start:]):
            yield len(piece) - start
        start = piece.find(wanted[0], start + 1)


def _tail(encode: Encode, rest: bytes) -> tuple[int, ...]:
    """Tokens of what is left of a string; none if it begins inside a character."""
    try:
        return tuple(encode(rest.decode())[:MAX_TAIL_TOKENS])
    except UnicodeDecodeError:
        return ()
