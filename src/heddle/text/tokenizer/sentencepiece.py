"""SentencePiece vocabularies (`llama` in GGUF): pieces with scores, spaces written as U+2581.

llama.cpp joins the two neighbours that make the piece with the highest score; among equal scores,
the leftmost two. It repeats this until no two neighbours make a piece. Then it writes characters
that are not a piece as bytes. This module runs the same algorithm on the byte-pair model of the
`tokenizers` library: each way to split a piece in two is a merge, ranked by the piece's score.
"""

from __future__ import annotations

import math
from bisect import bisect
from functools import cached_property
from operator import neg
from typing import TYPE_CHECKING

from heddle.text.tokenizer.bpe import PIECE, merging_tokenizer, pairs
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec

_SPACE = "\u2581"
_BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTE_OF = {piece: byte for byte, piece in enumerate(_BYTE_PIECES)}


class SentencePieceEncoder:
    """Plain text to ids. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, spec: TokenizerSpec) -> None:
        """`spec` has a score for each token. Pieces with a higher score merge first.

        Raises:
            ModelFileError: a byte has no piece, or a score is NaN.
        """
        lacking = [piece for piece in _BYTE_PIECES if piece not in vocabulary.ids]
        if lacking:
            spec.fail("pieces", f"has no piece {lacking[0]}, so some texts have no tokens")
        scores = spec.scores
        if not spec.merges:
            spec.check_entries("scores", len(scores))
        if any(map(math.isnan, scores)):
            spec.fail("scores", "contains NaN")
        # A character that occurs in pieces but is not a piece also merges, so it needs an id.
        characters = set().union(*vocabulary.pieces) - vocabulary.ids.keys()
        size = len(vocabulary.pieces)
        symbols = {char: size + i for i, char in enumerate(sorted(characters))}
        self._bytes_of_symbol = {
            id: [vocabulary.ids[_BYTE_PIECES[byte]] for byte in char.encode()]
            for char, id in symbols.items()
        }
        self._pieces = vocabulary.pieces
        self._numbers = list(range(size))
        known = vocabulary.ids | symbols
        merges = pairs(spec) if spec.merges else _merges(vocabulary, scores, known)
        self._tokenizer = merging_tokenizer(spec, known, merges, byte_fallback=True)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens in the text are encoded as plain text."""
        text = text.replace(" ", _SPACE)
        if len(text) <= PIECE:
            return self._encode(text)
        return [self._numbers[id] for part in self._parts(text) for id in self._encode(part)]

    def _encode(self, text: str) -> list[int]:
        # `encode` holds the GIL; see bpe.py.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids = encoding.ids
        if self._bytes_of_symbol.keys().isdisjoint(ids):
            return ids
        return [byte for id in ids for byte in self._bytes_of_symbol.get(id, (id,))]

    def _parts(self, text: str) -> Iterator[str]:
        """Cut `text` into parts. No piece contains the two characters beside a cut as neighbours,
        so no merge spans the cut."""
        start = 0
        for end in range(PIECE, len(text)):
            if end - start >= PIECE and text[end - 1 : end + 1] not in self._neighbours:
                yield text[start:end]
                start = end
        yield text[start:]

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        """All pairs of neighbouring characters in pieces. Only long texts need these pairs."""
        return frozenset(piece[i : i + 2] for piece in self._pieces for i in range(len(piece) - 1))


def _merges(
    vocabulary: Vocabulary, scores: list[float], known: Mapping[str, int]
) -> list[tuple[str, str]]:
    """All splits of a piece into two known pieces, best score first.

    Among equal scores, llama.cpp takes the leftmost pair, so it first extends the piece that it has
    just made. The rank of a merge cannot depend on the place in the text. So among equal scores,
    this function ranks longer pieces first, and among the splits of one piece, longer left parts.
    For runs of one character the result is the same. Other pieces of equal score may merge in
    another order, but vocabularies give each ordinary piece a score of its own.
    """
    pieces = vocabulary.pieces
    lengths = sorted({len(piece) for piece in known}, reverse=True)
    order = sorted(range(len(pieces)), key=lambda id: (-scores[id], -len(pieces[id])))
    merges = []
    for id in order:
        piece = pieces[id]
        # Try only lengths of known pieces: all splits of a piece of a million characters would take
        # far too long.
        for split in lengths[bisect(lengths, -len(piece), key=neg) :]:
            left = piece[:split]
            if left in known:
                right = piece[split:]
                if right in known:
                    merges.append((left, right))
    return merges


def piece_bytes(vocabulary: Vocabulary, spec: TokenizerSpec) -> list[bytes]:
    """The bytes each token adds to a text; none for tokens that are not text.

    Raises:
        ModelFileError: the text of a byte token is not `<0xHH>`.
    """
    return [
        _bytes_of(piece, type, spec)
        for piece, type in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]


def _bytes_of(piece: str, type: int, spec: TokenizerSpec) -> bytes:
    if type == TokenType.NORMAL:
        return piece.replace(_SPACE, " ").encode()
    if type == TokenType.USER_DEFINED:
        return piece.encode()
    if type == TokenType.BYTE:
        if piece not in _BYTE_OF:
            spec.fail("types", f"says that {piece!r} is a byte; a byte is written <0xHH>")
        return bytes([_BYTE_OF[piece]])
    return b""
