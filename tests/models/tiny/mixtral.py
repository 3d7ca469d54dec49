"""Tiny models of Mixtral."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base_mixture import GGUF_NAMES, TinyMixture


@dataclass(frozen=True)
class TinyMixtral(TinyMixture):
    architecture = "mixtral"
    gguf_architecture = "llama"
    gguf_names = GGUF_NAMES
    router = "block_sparse_moe.gate"
    stacks = (
        "block_sparse_moe.experts.*.w1",
        "block_sparse_moe.experts.*.w3",
        "block_sparse_moe.experts.*.w2",
    )
    count_key = "num_local_experts"
    interleaves = True

    expert_width: int = 48


MODELS = (
    TinyMixtral("two of five", heads=4, kv_heads=2, head_dim=16, tied=False, experts=5, used=2),
)
