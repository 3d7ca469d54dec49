"""A tiny model of Sarvam with latent attention: as DeepSeek-V3, with other names in config.json."""

from __future__ import annotations

from dataclasses import dataclass

from models.tiny.deepseek_v3 import TinyDeepseekV3


@dataclass(frozen=True)
class TinySarvam(TinyDeepseekV3):
    architecture = "sarvam_mla"
    count_key = "num_experts"

    def config(self) -> dict[str, object]:
        """As sarvam-105b has it: another name of yarn, and the size of what the cache stores."""
        common = super().config()
        rope = common.pop("rope_parameters")
        assert isinstance(rope, dict)
        base = rope.pop("rope_theta")
        kind = {"type": "deepseek_yarn"} if rope.pop("rope_type") == "yarn" else {"type": "default"}
        return common | {
            "num_shared_experts": common.pop("n_shared_experts"),
            "head_dim": self.rank + self.rope_dim,
            "rope_theta": base,
            "rope_scaling": rope | kind,
        }


FOLDERS = (TinySarvam("105b", heads=3, kv_heads=3, head_dim=28, tied=False, stretched=True),)
