"""Unigram (Kudo 2018, arXiv:1804.10959): the pieces of a text with the highest sum of scores.

XLM-RoBERTa and T5 have it, from SentencePiece. Spaces are written as U+2581. A normalizer replaces
characters by a map that is compiled into the file.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.extensions.tokenizers.pipeline import SPACE, PipelineEncoder, pipeline_of
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec

_PREFIX = "tokenizer.ggml."
_UNREACHABLE = secrets.token_hex(16)
"""Stands in the model for tokens that are no text. Such a token has the best score, so a text that
spells it would become it."""


class Unigram:
    """The kind of tokenizer.json; see :class:`heddle.weights.tokenizer_kind.TokenizerKind`."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` with the file's normalizer, pre-tokenizer and model."""
        model = source["model"]
        pairs = [one for one in model["vocab"] if isinstance(one, list) and len(one) == 2]
        scores = [score for _, score in pairs if isinstance(score, int | float)]
        if len(scores) != len(model["vocab"]):
            spec.fail("model.vocab", "must have pairs of a piece and its score")
        hidden = _hidden(spec, scores)
        return replace(spec, pipeline=pipeline_of(source, {**model, "vocab": hidden}))

    def build(
        self, vocabulary: Vocabulary, spec: TokenizerSpec, /
    ) -> tuple[PipelineEncoder, list[bytes]]:
        """See `TokenizerKind`."""
        typed = zip(vocabulary.pieces, vocabulary.types, strict=True)
        return PipelineEncoder(vocabulary, spec), [_bytes_of(piece, type) for piece, type in typed]


class GGUFUnigram(Unigram):
    """The kind `t5` of GGUF."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` with a normalizer and a pre-tokenizer that say the same as the metadata."""
        scores = [float(score) for score in _array(spec, source, "scores")]
        spec.check_entries("scores", len(scores))
        charsmap = bytes(int(byte) & 255 for byte in _array(spec, source, "precompiled_charsmap"))
        words: list[dict[str, Any]] = [
            {
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": "never" if spec.add_space_prefix is False else "always",
                "split": True,
            }
        ]
        if source.get(f"{_PREFIX}remove_extra_whitespaces"):
            words.insert(0, {"type": "WhitespaceSplit"})
        encoded = base64.b64encode(charsmap).decode()
        normalizer = {"type": "Precompiled", "precompiled_charsmap": encoded}
        steps = {
            "normalizer": normalizer if charsmap else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        }
        unknown = source.get(f"{_PREFIX}unknown_token_id")
        unknown = int(unknown) if isinstance(unknown, int) else None
        model = {"type": "Unigram", "unk_id": unknown, "vocab": _hidden(spec, scores)}
        end = spec.roles.get("eos")
        return replace(
            spec,
            add_space_prefix=False,
            between=() if end is None else (end, end),
            pipeline=pipeline_of(steps, model),
        )


def _hidden(spec: TokenizerSpec, scores: Iterable[float]) -> list[tuple[str, float]]:
    """The model's pieces with their scores, without the texts of tokens that are no text."""
    types = spec.types or [TokenType.NORMAL] * len(spec.pieces)
    spec.check_entries("types", len(types))
    return [
        (piece if type == TokenType.NORMAL else f"{_UNREACHABLE}{id}", score)
        for id, (piece, type, score) in enumerate(zip(spec.pieces, types, scores, strict=False))
    ]


def _array(spec: TokenizerSpec, source: Mapping[str, Any], name: str) -> list[Any]:
    values = np.asarray(source.get(_PREFIX + name, ()))
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "iuf"):
        spec.fail(name, "must be an array of numbers")
    found: list[Any] = values.tolist()
    return found


def _bytes_of(piece: str, type: int) -> bytes:
    return piece.replace(SPACE, " ").encode() if type == TokenType.NORMAL else b""


KIND = Unigram()
GGUF_KIND = GGUFUnigram()
