"""Tiny models of DeepSeek-V3: sigmoid scores with a bias, groups of experts, compressed queries."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.base_heads import HEAD_NAMES, TinyHead
from models.tiny.base_latent import TinyLatent


@dataclass(frozen=True)
class TinyDeepseekV3(TinyLatent, TinyHead):
    architecture = "deepseek_v3"
    gguf_names = TinyLatent.gguf_names | HEAD_NAMES

    normalised: bool = True

    def config(self) -> dict[str, object]:
        return super().config() | {
            "n_group": self.groups,
            "topk_group": self.groups_used,
            "norm_topk_prob": self.normalised,
            "num_nextn_predict_layers": int(self.mtp),
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "expert_gating_func": 2,
            "expert_weights_norm": self.normalised,
        }
        return super().metadata() | {
            f"{self.gguf_architecture}.{key}": value for key, value in keys.items()
        }


MODELS = (
    TinyDeepseekV3(
        "groups",
        heads=3,
        kv_heads=3,
        head_dim=28,
        tied=False,
        query_rank=24,
        groups=4,
        groups_used=2,
        stretched=True,
        mtp=True,
    ),
    TinyDeepseekV3("one group", heads=4, kv_heads=4, head_dim=36, tied=False, normalised=False),
)
