"""Strings of a request's sampling parameters as the token sequences that spell them.

What a sampler compares are tokens. A string can come about in more than one way in them: that is
looked up here, once per request, so that no sampler needs a tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.step import TokenRules, TokenSequences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.text.tokenizer import Tokenizer
    from heddle.types import SamplingParams

MAX_TAIL_TOKENS = 20
"""Tokens of a breaker after its first; as in llama.cpp."""


def token_rules(params: SamplingParams, tokenizer: Tokenizer) -> TokenRules:
    """The rules of one request in tokens."""
    return TokenRules(
        tuple(sorted(tokenizer.eos_ids)) if params.min_tokens else (),
        bad_sequences(params.bad_words, tokenizer),
        tokenizer.breakers(params.dry_sequence_breakers) if params.dry_multiplier else None,
    )


def bad_sequences(words: tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as it begins a text, and as it follows a space.

    That is what vLLM's `bad_words` mean, but that it leaves the form with a space out where that
    has another number of tokens. Other spellings, as by single letters, are not covered.
    """
    forms = (form for word in words for form in (word.lstrip(), " " + word.lstrip()))
    return tuple(
        dict.fromkeys(
            tuple(tokenizer.encode(form, add_special=False, parse_special=False, continues=True))
            for form in forms
        )
    )


def find_breakers(tokenizer: Tokenizer, strings: tuple[str, ...]) -> TokenSequences:
    """All token sequences whose text has one of the strings in it, beginning in the first token.

    One token may hold the whole string; else its end is the string's beginning and the others are
    the tokens of the rest, at most `MAX_TAIL_TOKENS` (llama.cpp, PR 9702).
    """
    found: dict[tuple[int, ...], None] = {}
    for string in strings:
        wanted = string.encode(errors="replace")
        tails: dict[int, tuple[int, ...]] = {}  # by how many bytes the first token has
        for token in range(tokenizer.vocabulary_size):
            piece = tokenizer.token_bytes(token)
            if wanted in piece:
                found[(token,)] = None
                continue
            for length in _overlaps(piece, wanted):
                if length not in tails:
                    tails[length] = _tail(tokenizer, wanted[length:])
                if tails[length]:
                    found[(token, *tails[length])] = None
    return TokenSequences(tuple(found))


def _overlaps(piece: bytes, wanted: bytes) -> Iterator[int]:
    """Lengths of the ends of `piece` that begin `wanted`, whole or not."""
    start = piece.find(wanted[:1])
    while start >= 0:
        if wanted.startswith(piece[start:]):
            yield len(piece) - start
        start = piece.find(wanted[:1], start + 1)


def _tail(tokenizer: Tokenizer, rest: bytes) -> tuple[int, ...]:
    """Tokens of what is left of a string; none if it begins inside a character."""
    try:
        text = rest.decode()
    except UnicodeDecodeError:
        return ()
    tokens = tokenizer.encode(text, add_special=False, parse_special=False, continues=True)
    return tuple(tokens[:MAX_TAIL_TOKENS])
