"""Assigns the tokens of an output to its parts: reasoning, text or calls."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

from heddle.text.parsing.reading import PLAIN
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading
    from heddle.types import Output, TokenLogprob


class TokenSpelling(Protocol):
    """The text and bytes of a token."""

    def token_bytes(self, id: int, /) -> bytes: ...

    def token_text(self, id: int, /) -> str: ...


def parts_with_tokens(
    output: Output, reading: Reading, spelling: TokenSpelling
) -> Iterator[tuple[Part | None, Sequence[TokenLogprob]]]:
    """Each part with the tokens since the part before it; at last None with the remaining tokens.

    The tokens of a mark go with the part that the mark announces, as in a stream.
    """
    reader = reading.reader()
    waiting: list[TokenLogprob] = []
    for piece, tokens in _pieces(output, reading, spelling):
        waiting += tokens
        cut = output.finish is FinishReason.LENGTH
        for part in reader.feed(piece) if piece is not None else reader.finish(cut=cut):
            yield part, waiting
            waiting = []
    yield None, waiting


def _pieces(
    output: Output, reading: Reading, spelling: TokenSpelling
) -> Iterator[tuple[str | None, Sequence[TokenLogprob]]]:
    """The text cut at its tokens, then None for its end. Plain text comes in one piece.

    Cuts do not change the parts, so approximate cuts will do.
    """
    start = 0
    if reading is not PLAIN:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for token in output.tokens:
            name = spelling.token_text(token.token)
            if name not in reading.specials:
                name = decode(spelling.token_bytes(token.token))
            yield output.text[start : start + len(name)], [token]
            start += len(name)
    yield output.text[start:], output.tokens if reading is PLAIN else ()
    yield None, ()
