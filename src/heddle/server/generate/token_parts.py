"""Assigns the tokens of an output to its parts: reasoning, text or calls."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

from heddle.outputs import FinishReason
from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.outputs import Output, TokenLogprob
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading


class TokenSpelling(Protocol):
    """The text and bytes of a token."""

    def token_bytes(self, id: int, /) -> bytes: ...

    def token_text(self, id: int, /) -> str: ...


def parts_with_tokens(
    output: Output, reading: Reading, spelling: TokenSpelling
) -> Iterator[tuple[Part | None, Sequence[TokenLogprob]]]:
    """The parts of an output, each with its tokens; at the end None with the remaining tokens.

    Tokens without a part, such as the tokens of a mark, belong to the next part, as in a stream.
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
    """The text in pieces with their tokens, then None for the end. Plain text is one piece.

    The cuts between pieces are approximate, because they do not change the parts.
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
