"""Byte-level byte-pair encoding of GPT-2 (`gpt2` in GGUF).

The encoder cuts text into words, and maps the UTF-8 bytes of a word to an alphabet of 256 printable
characters. Then merges join neighbours, the lowest rank first (Radford et al. 2019, "Language
Models are Unsupervised Multitask Learners", 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import models

from heddle.errors import ModelFileError
from heddle.text.panics import panics_as
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.text.tokenizer.pretokenizers import PreTokenizer
    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec


def _alphabet() -> dict[str, int]:
    """Characters to bytes. Printable Latin-1 characters stand for their own byte. U+0100 and the
    following characters stand for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _alphabet()
ALPHABET = [char for _, char in sorted((byte, char) for char, byte in _BYTE_OF.items())]
"""The character of each byte."""

PIECE = 1 << 18
"""How many characters are encoded at once. During encoding, the library keeps some 250 bytes for
each word and token: 8 MB of digits took 2.4 GB in one piece, and take 0.3 GB in pieces of this
size."""

_LOOKAHEAD = 16
"""An upper bound on how many characters after a word can change where the word ends. Patterns look
ahead to the end of a run of spaces, otherwise at most three characters (`'ll`, groups of
digits)."""


class ByteLevelEncoder:
    """Plain text to ids. Safe to share between threads."""

    def __init__(
        self, vocabulary: Vocabulary, spec: TokenizerSpec, pre_tokenizer: PreTokenizer
    ) -> None:
        """`spec` has the merges.

        Raises:
            ModelFileError: a merge is not a pair, or its pieces are not in the vocabulary.
        """
        self._size = len(vocabulary.pieces)
        self._numbers = list(range(self._size))
        # A vocabulary may lack bytes. As in llama.cpp, such bytes vanish after merging. During
        # merging a symbol stands for them, because otherwise their neighbours would merge.
        lacking = [char for char in _BYTE_OF if char not in vocabulary.ids]
        symbols = {char: self._size + i for i, char in enumerate(lacking)}
        self._tokenizer = merging_tokenizer(
            spec, vocabulary.ids | symbols, pairs(spec), ignore_merges=pre_tokenizer.whole_words
        )
        self._tokenizer.pre_tokenizer = pre_tokenizer.build()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens in the text are encoded as plain text."""
        if len(text) <= PIECE:
            return self._in_vocabulary(self._encode(text).ids)
        ids: list[int] = []
        start, size = 0, PIECE
        while len(text) - start > size:
            settled, characters = self._settled(text[start : start + size])
            ids += settled
            start += characters
            size = PIECE if characters else 4 * size  # else the piece lies inside one word
        return ids + self._shared_numbers(self._encode(text[start:]).ids)

    def _settled(self, piece: str) -> tuple[list[int], int]:
        """Ids of the words of `piece` that following text cannot change, and the length of these
        words."""
        [encoding] = self._tokenizer.encode_batch([piece], add_special_tokens=False)
        word = _last_settled_word(encoding, piece)
        if word is None:
            return [], 0
        tokens = _end(encoding.word_to_tokens(word))
        return self._shared_numbers(encoding.ids[:tokens]), _end(encoding.word_to_chars(word))

    def _encode(self, text: str) -> tokenizers.Encoding:
        # `encode` holds the GIL: 0.5 s for 1 MB of text, during which all streams stopped.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return encoding

    def _in_vocabulary(self, ids: list[int]) -> list[int]:
        return [id for id in ids if id < self._size]

    def _shared_numbers(self, ids: list[int]) -> list[int]:
        """`_in_vocabulary` with one shared object per number: 8 bytes per id instead of 36."""
        return [self._numbers[id] for id in ids if id < self._size]


def merging_tokenizer(
    spec: TokenizerSpec, ids: Mapping[str, int], merges: list[tuple[str, str]], **options: bool
) -> tokenizers.Tokenizer:
    """The library's tokenizer that joins pairs of pieces, the first merges first.

    Raises:
        ModelFileError: a merge needs a piece that is not in the vocabulary.
    """

    def wrong(problem: object) -> ModelFileError:
        label = spec.label("merges")
        return ModelFileError(
            f"{label} do not fit the vocabulary: {problem}; fetch another file", field=label
        )

    try:
        with panics_as(wrong):
            return tokenizers.Tokenizer(models.BPE(vocab=dict(ids), merges=merges, **options))
    except ModelFileError:
        raise
    except Exception as error:  # the library raises no narrower class
        raise wrong(error) from error


def _last_settled_word(encoding: tokenizers.Encoding, piece: str) -> int | None:
    """The last word of `piece` whose end following text cannot change; None if there is none.

    The patterns match from left to right and never look back. So the words after a settled word do
    not depend on the text before them. New patterns must look ahead at most `_LOOKAHEAD`
    characters.
    """
    edge = len(piece.rstrip()) - _LOOKAHEAD
    word = encoding.token_to_word(len(encoding) - 1)
    while word is not None and _end(encoding.word_to_chars(word)) > edge:
        word = word - 1 if word else None
    return word


def _end(span: tuple[int, int] | None) -> int:
    assert span is not None, "every word is in its encoding"
    return span[1]


def piece_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes each token adds to a text; none for tokens that are not text."""
    return [
        _bytes_of(piece, type)
        for piece, type in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]


def _bytes_of(piece: str, type: int) -> bytes:
    if type != TokenType.NORMAL:
        return piece.encode() if type == TokenType.USER_DEFINED else b""
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:  # a character outside the alphabet stands for itself
        return b"".join(
            bytes([_BYTE_OF[char]]) if char in _BYTE_OF else char.encode() for char in piece
        )


def pairs(spec: TokenizerSpec) -> list[tuple[str, str]]:
    """The merges, each as its two pieces.

    Raises:
        ModelFileError: a merge is not a pair.
    """
    found = []
    for rank, merge in enumerate(spec.merges):
        split = merge.find(" ", 1)
        if split < 0:
            label = spec.label("merges")
            raise ModelFileError(
                f"{label}[{rank}] must be two pieces with a space between, got {merge!r}",
                field=label,
            )
        found.append((merge[:split], merge[split + 1 :]))
    return list(dict.fromkeys(found))  # an equal pair later has no effect
