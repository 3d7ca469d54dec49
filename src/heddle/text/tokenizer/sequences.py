"""Turns strings of sampling parameters into the token sequences that spell them.

Samplers compare tokens, and more than one token sequence can spell a string. This module finds the
sequences before a request is queued, so that no sampler needs a tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.token_rules import TokenSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    Encode: TypeAlias = Callable[[str], list[int]]

MAX_TAIL_TOKENS = 20
"""Most tokens of a breaker that are compared after its first token; as in llama.cpp."""


def spell(encode: Encode, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as it follows other text, directly and after a space.

    `bad_words` of vLLM has the same meaning, except that vLLM leaves out the form with a space if
    the two forms differ in their number of tokens. This function does not cover other spellings,
    such as single letters.
    """
    forms = (form for word in words for form in (word.lstrip(), " " + word.lstrip()))
    return tuple(dict.fromkeys(tuple(encode(form)) for form in forms))


def find_breakers(
    pieces: Sequence[bytes], encode: Encode, strings: tuple[str, ...]
) -> TokenSequences:
    """All token sequences whose text contains one of the strings, beginning in the first token.

    A single token may contain the complete string. Otherwise the first token ends with the
    beginning of the string, and at most `MAX_TAIL_TOKENS` tokens of the rest follow (llama.cpp, PR
    9702).

    Args:
        pieces: the bytes of each token.
        encode: returns the tokens of text that follows other text.
        strings: the strings to find; none is empty.
    """
    found: dict[tuple[int, ...], None] = {}
    for string in strings:
        wanted = string.encode(errors="replace")
        first = wanted[0]
        tails: dict[int, tuple[int, ...]] = {}  # tokens of the rest, by the bytes before it
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
    """Lengths of all ends of `piece` with which `wanted` begins."""
    start = piece.find(wanted[0])
    while start >= 0:
        if wanted.startswith(piece[start:]):
            yield len(piece) - start
        start = piece.find(wanted[0], start + 1)


def _tail(encode: Encode, rest: bytes) -> tuple[int, ...]:
    """Tokens of the rest of a string; none if the rest begins inside a character."""
    try:
        return tuple(encode(rest.decode())[:MAX_TAIL_TOKENS])
    except UnicodeDecodeError:
        return ()
