"""Writes a tokenizer as the `tokenizer.ggml.*` keys that `heddle.weights.gguf.tokenizer` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.text.tokenizer.pretokenizers import PRE_TOKENIZERS, spelled_out
from heddle.weights.gguf.tokenizer import ALGORITHMS, PREFIX, ROLES

if TYPE_CHECKING:
    from heddle.weights.checkpoint import TokenizerSpec

_ALL_PIECES_LOW = -1e6
"""Score of pieces that no merge makes."""


def exported_tokenizer(spec: TokenizerSpec, pre_tokenizer: str | None) -> dict[str, object]:
    """The metadata that describes the tokenizer; `pre_tokenizer` is its name in llama.cpp."""
    model = next(name for name, algorithm in ALGORITHMS.items() if algorithm == spec.algorithm)
    found: dict[str, object] = {"model": model, "tokens": spec.pieces}
    if model == "llama":
        found["scores"] = np.array(spec.scores or _scores_of_merges(spec), np.float32)
    else:
        found |= {"merges": spec.merges, "pre": pre_tokenizer or "default"}
    if spec.types is not None:
        found["token_type"] = np.array(spec.types, np.int32)
    found |= {ROLES[role][-1]: id for role, id in spec.roles.items()}
    others = [id for id in spec.end_ids if id not in spec.roles.values()]
    if others:
        found.setdefault("eot_token_id", others[0])
    flags = {
        "add_bos_token": spec.add_bos,
        "add_eos_token": spec.add_eos,
        "add_space_prefix": spec.add_space_prefix,
    }
    found |= {key: value for key, value in flags.items() if value is not None}
    return {PREFIX + key: value for key, value in found.items()}


def _scores_of_merges(spec: TokenizerSpec) -> list[float]:
    """Scores that join pieces in the order of the merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(spec.merges):
        ranks.setdefault("".join(merge.split(" ", 1)), rank)
    return [-float(ranks[p]) if p in ranks else _ALL_PIECES_LOW for p in spec.pieces]


def pre_tokenizer_name(spec: TokenizerSpec) -> str:
    """llama.cpp's name of a checkpoint's pre-tokenizer.

    Raises:
        UnsupportedModelError: llama.cpp has no name for its patterns.
    """
    if spec.patterns is None:
        return spec.pre_tokenizer or "default"
    patterns = tuple(map(spelled_out, spec.patterns))
    for name, known in PRE_TOKENIZERS.items():
        if known.patterns == patterns and known.whole_words == spec.whole_words:
            return name
    raise UnsupportedModelError(
        f"the pre-tokenizer with the patterns {spec.patterns} has no name in GGUF that Heddle"
        f" knows; known: {', '.join(PRE_TOKENIZERS)}",
        param="pre_tokenizer",
    )
