"""Small vocabularies, as metadata of a model file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import pre_tokenizers

from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.text.tokenizer.vocabulary import TokenType
from heddle.weights.gguf.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(
    merges: Sequence[str] = (),
    special: Mapping[str, TokenType] | None = None,
    *,
    without: str = "",
    **keys: object,
) -> dict[str, object]:
    """A `gpt2` vocabulary: the alphabet except `without`, results of `merges`, then `special`."""
    special = special or {}
    alphabet = [char for char in sorted(pre_tokenizers.ByteLevel.alphabet()) if char not in without]
    pieces = [*alphabet, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    return _metadata(
        model="gpt2",
        pre="gpt-2",
        tokens=[*pieces, *special],
        token_type=[TokenType.NORMAL] * len(pieces) + list(special.values()),
        merges=list(merges),
        **keys,
    )


def sentencepiece(
    scores: Mapping[str, float], special: Mapping[str, TokenType] | None = None, **keys: object
) -> dict[str, object]:
    """A `llama` vocabulary: `special`, the bytes, then the pieces of `scores`. No BOS."""
    special = special or {}
    return _metadata(
        model="llama",
        tokens=[*special, *BYTE_PIECES, *scores],
        scores=[-1000.0] * len(special) + [0.0] * 256 + list(scores.values()),
        token_type=[
            *special.values(),
            *[TokenType.BYTE] * 256,
            *[TokenType.NORMAL] * len(scores),
        ],
        **{"add_bos_token": False} | keys,
    )


def tokenizer_of(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer of a GGUF file with this metadata."""
    return Tokenizer.of(read_tokenizer(metadata))


def _metadata(**keys: object) -> dict[str, object]:
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
