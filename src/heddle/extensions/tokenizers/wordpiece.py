"""WordPiece (Schuster & Nakajima 2012; Devlin et al. 2018, arXiv:1810.04805): BERT and its kin.

A word becomes the longest piece that begins it, then the longest that continues it, and so on. A
word that no pieces make is unknown as a whole. tokenizer.json writes `##` before a piece that
continues a word. GGUF writes U+2581 before a piece that begins one, and no normalizer; as BERT's
own tokenizers, `bert` there lowers case and drops accents if no piece has an upper-case letter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.extensions.tokenizers.pipeline import SPACE, PipelineEncoder, pipeline_of
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec

_CONTINUES = "##"
_WORD_LIMIT = 100
"""Characters of the longest word that has pieces, as in BERT."""


class WordPiece:
    """The kind of tokenizer.json; see :class:`heddle.weights.tokenizer_kind.TokenizerKind`."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` with the file's normalizer, pre-tokenizer and model."""
        return replace(spec, pipeline=pipeline_of(source, source["model"]))

    def build(
        self, vocabulary: Vocabulary, spec: TokenizerSpec, /
    ) -> tuple[PipelineEncoder, list[bytes]]:
        """See `TokenizerKind`. A piece that begins a word adds a space before it."""
        typed = zip(vocabulary.pieces, vocabulary.types, strict=True)
        return PipelineEncoder(vocabulary, spec), [_bytes_of(piece, type) for piece, type in typed]


class GGUFWordPiece(WordPiece):
    """The kind `bert` of GGUF."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` with the pieces as tokenizer.json writes them, and a normalizer."""
        types = spec.types or [TokenType.NORMAL] * len(spec.pieces)
        spec.check_entries("types", len(types))
        pieces = [_as_in_folders(*one) for one in zip(spec.pieces, types, strict=True)]
        cased = any(p != p.lower() for p, type in zip(pieces, types, strict=True) if _is_text(type))
        unknown = _token(source, "unknown_token_id", pieces, "[UNK]")
        begin = _token(source, "cls_token_id", pieces, "[CLS]")
        end = _token(source, "seperator_token_id", pieces, "[SEP]")  # their spelling
        steps = {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": not cased,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
        }
        ids: dict[str, int] = {}
        for id, piece in enumerate(pieces):
            ids.setdefault(piece, id)
        model = {
            "type": "WordPiece",
            "unk_token": "[UNK]" if unknown is None else pieces[unknown],
            "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": _WORD_LIMIT,
            "vocab": ids,
        }
        if begin is None or end is None:
            spec.fail("pieces", "has no [CLS] or no [SEP], which surround every text")
        return replace(
            spec,
            pieces=pieces,
            roles={**spec.roles, "bos": begin},
            add_bos=True,
            add_eos=True,
            text_end=end,
            between=(end,),
            pipeline=pipeline_of(steps, model),
        )


def _token(source: Mapping[str, Any], key: str, pieces: list[str], text: str) -> int | None:
    """The id under a key of the metadata, or of the piece that BERT has for it."""
    id = source.get(f"tokenizer.ggml.{key}")
    if isinstance(id, int) and 0 <= id < len(pieces):
        return int(id)
    return pieces.index(text) if text in pieces else None


def _is_text(type: int) -> bool:
    return type == TokenType.NORMAL


def _as_in_folders(piece: str, type: int) -> str:
    if not _is_text(type):
        return piece
    return piece.removeprefix(SPACE) if piece.startswith(SPACE) else _CONTINUES + piece


def _bytes_of(piece: str, type: int) -> bytes:
    if not _is_text(type):
        return b""
    return (piece[2:] if piece.startswith(_CONTINUES) else f" {piece}").encode()


KIND = WordPiece()
GGUF_KIND = GGUFWordPiece()
