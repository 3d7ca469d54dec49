"""Byte-level byte-pair encoding: vocabularies of the kind GPT-2 brought (`gpt2` in GGUF).

Text is cut into words, a word's UTF-8 bytes are written in an alphabet of 256 printable
characters, and merges join neighbours, the lowest rank first (Radford et al. 2019, "Language
Models are Unsupervised Multitask Learners", 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import models

from heddle.errors import ModelFileError
from heddle.text.tokenizer.metadata import PREFIX
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from heddle.text.tokenizer.pretokenizers import PreTokenizer
    from heddle.text.tokenizer.vocabulary import Vocabulary


def _alphabet() -> dict[str, int]:
    """Character to byte. Printable Latin-1 stands for itself; the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _alphabet()


class ByteLevelEncoder:
    """Plain text to ids. Safe to share between threads."""

    def __init__(
        self, vocabulary: Vocabulary, merges: list[str], pre_tokenizer: PreTokenizer
    ) -> None:
        """`merges` are pairs of pieces with a space between, best first.

        Raises:
            ModelFileError: a merge is no pair, or its pieces are not in the vocabulary.
        """
        self._size = len(vocabulary.pieces)
        # Vocabularies may lack bytes. Those vanish, as in llama.cpp, but only after merging: a
        # symbol must stand between their neighbours, or the neighbours would merge.
        lacking = [char for char in _BYTE_OF if char not in vocabulary.ids]
        symbols = {char: self._size + i for i, char in enumerate(lacking)}
        try:
            model = models.BPE(
                vocab=vocabulary.ids | symbols,
                merges=_pairs(merges),
                ignore_merges=pre_tokenizer.whole_words,
            )
        except Exception as error:  # the library raises no narrower class
            raise ModelFileError(
                f"{PREFIX}merges do not fit the vocabulary: {error}", field=f"{PREFIX}merges"
            ) from error
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizer.build()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, nothing in it taken as a special token."""
        # `encode` holds the GIL: 0.5 s for 1 MB of text, in which every stream stood still.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return [id for id in encoding.ids if id < self._size]


def piece_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes each token adds to a text; none for tokens that are not text."""
    return [
        _bytes_of(piece, type)
        for piece, type in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]


def _bytes_of(piece: str, type: int) -> bytes:
    if type == TokenType.USER_DEFINED:
        return piece.encode()
    if type != TokenType.NORMAL:
        return b""
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # a character outside the alphabet stands for itself
        return b"".join(
            bytes([_BYTE_OF[char]]) if char in _BYTE_OF else char.encode() for char in piece
        )


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for rank, merge in enumerate(merges):
        split = merge.find(" ", 1)
        if split < 0:
            raise ModelFileError(
                f"{PREFIX}merges[{rank}] must be two pieces with a space between, got {merge!r}",
                field=f"{PREFIX}merges",
            )
        pairs.append((merge[:split], merge[split + 1 :]))
    return list(dict.fromkeys(pairs))  # the first of equal pairs has the rank
