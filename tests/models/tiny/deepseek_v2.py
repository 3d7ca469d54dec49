"""Tiny models of DeepSeek-V2: softmax scores; one with compressed queries and groups of experts."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base_latent import TinyLatent


@dataclass(frozen=True)
class TinyDeepseekV2(TinyLatent):
    architecture = "deepseek_v2"

    biased: bool = False

    def config(self) -> dict[str, object]:
        limited = {
            "topk_method": "group_limited_greedy",
            "n_group": self.groups,
            "topk_group": self.groups_used,
        }
        return super().config() | (limited if self.groups > 1 else {"topk_method": "greedy"})


MODELS = (
    TinyDeepseekV2("lite", heads=4, kv_heads=4, head_dim=28, tied=False, fused=True),
    TinyDeepseekV2(
        "stretched",
        heads=8,
        kv_heads=8,
        head_dim=28,
        tied=False,
        query_rank=24,
        stretched=True,
    ),
    TinyDeepseekV2(
        "groups",
        heads=2,
        kv_heads=2,
        head_dim=40,
        tied=False,
        rank=32,
        value_dim=32,
        experts=9,
        groups=3,
        groups_used=2,
    ),
)
