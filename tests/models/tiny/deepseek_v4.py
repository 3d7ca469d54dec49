"""Tiny models of DeepSeek-V4: all kinds of attention, experts listed by token id and chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tiny.base import BASE, ORIGINAL_CONTEXT, SCALE, Random
from models.tiny.base_mixture import TinyMixture

_STREAMS = 3
_NAMES = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}


@dataclass(frozen=True)
class TinyDeepseekV4(TinyMixture):
    """`ratios` are those of the layers: 4 for runs that overlap, 128 for `long` positions."""

    architecture = "deepseek_v4"
    router = "ffn.gate"
    stacks = ("ffn.experts.*.w1", "ffn.experts.*.w3", "ffn.experts.*.w2")
    count_key = "n_routed_experts"

    layers: int = 4
    ratios: tuple[int, ...] = (0, 4, 128, 4)
    short: int = 2
    long: int = 5
    window: int = 6
    rope_dim: int = 8
    query_rank: int = 24
    groups: int = 2
    group_rank: int = 20
    listed: int = 2
    top: int = 40
    index_heads: int = 2
    index_dim: int = 16
    stretched: bool = True

    def config(self) -> dict[str, object]:
        yarn = {
            "type": "yarn",
            "factor": SCALE,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
            "beta_fast": 4,
            "beta_slow": 1,
        }
        common = super().config()
        del common["rope_parameters"], common["intermediate_size"]
        return common | {
            "compress_ratios": [*self.ratios, 0],
            "compress_rate_csa": self.short,
            "compress_rate_hca": self.long,
            "compress_rope_theta": 16 * BASE,
            "hc_eps": 1e-6,
            "hc_mult": _STREAMS,
            "hc_sinkhorn_iters": 4,
            "index_head_dim": self.index_dim,
            "index_n_heads": self.index_heads,
            "index_topk": self.top,
            "n_shared_experts": 1,
            "num_hash_layers": self.listed,
            "num_nextn_predict_layers": 1,
            "o_groups": self.groups,
            "o_lora_rank": self.group_rank,
            "q_lora_rank": self.query_rank,
            "qk_rope_head_dim": self.rope_dim,
            "rope_scaling": yarn if self.stretched else None,
            "rope_theta": BASE,
            "routed_scaling_factor": 1.5,
            "scoring_func": "sqrtsoftplus",
            "sliding_window": self.window,
            "swiglu_limit": 10.0,
        }

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        """One layer's weights. Gates and inputs of experts are enlarged, so that limits count."""
        width, dim, heads = self.width, self.head_dim, self.heads
        layer = {
            "attn_norm.weight": random.near(1, width),
            "ffn_norm.weight": 3 * random.near(1, width),
            "attn.attn_sink": random.normal(heads),
            "attn.wq_a.weight": random.matrix(self.query_rank, width),
            "attn.q_norm.weight": random.near(1, self.query_rank),
            "attn.wq_b.weight": random.matrix(heads * dim, self.query_rank),
            "attn.wkv.weight": random.matrix(dim, width),
            "attn.kv_norm.weight": random.near(1, dim),
            "attn.wo_a.weight": random.matrix(
                self.groups * self.group_rank, heads * dim // self.groups
            ),
            "attn.wo_b.weight": random.matrix(width, self.groups * self.group_rank),
        }
        for part in ("attn", "ffn"):
            layer |= _mixing(f"hc_{part}_", random, _STREAMS * (_STREAMS + 2), width, 3)
        if self.ratios[index]:
            ratio = self.short if self.ratios[index] == 4 else self.long
            columns = dim * (2 if self.ratios[index] == 4 else 1)
            layer |= _compressor("attn.compressor.", random, width, ratio, columns, dim)
        if self.ratios[index] == 4:
            inner, size = self.index_heads, self.index_dim
            layer |= _compressor("attn.indexer.compressor.", random, width, ratio, 2 * size, size)
            layer |= {
                "attn.indexer.wq_b.weight": random.matrix(inner * size, self.query_rank),
                "attn.indexer.weights_proj.weight": random.matrix(inner, width),
            }
        return layer | self._experts(index, random)

    def _experts(self, index: int, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width
        found = self.mixture(random)
        for part in ("w1", "w3"):
            found[f"ffn.shared_experts.{part}.weight"] = 2 * random.matrix(hidden, width)
        found["ffn.shared_experts.w2.weight"] = random.matrix(width, hidden)
        if index >= self.listed:
            return found | {"ffn.gate.bias": 0.3 * random.normal(self.experts)}
        orders = [random.normal(self.experts).argsort() for _ in range(self.vocabulary)]
        return found | {"ffn.gate.tid2eid": np.stack(orders)[:, : self.used].astype(np.int64)}

    def further(self) -> dict[str, np.ndarray]:
        return _mixing("hc_head_", Random(21), _STREAMS, self.width, 1)

    def folder_name(self, name: str) -> str:
        whole, _, kind = name.rpartition(".")
        return f"{_NAMES[whole]}.{kind}" if whole in _NAMES else name.removeprefix("model.")


def _mixing(
    prefix: str, random: Random, columns: int, width: int, kinds: int
) -> dict[str, np.ndarray]:
    return {
        f"{prefix}fn": random.matrix(columns, _STREAMS * width),
        f"{prefix}base": random.normal(columns),
        f"{prefix}scale": random.near(1, kinds),
    }


def _compressor(
    prefix: str, random: Random, width: int, ratio: int, columns: int, dim: int
) -> dict[str, np.ndarray]:
    return {
        f"{prefix}wkv.weight": random.matrix(columns, width),
        f"{prefix}wgate.weight": 2 * random.matrix(columns, width),
        f"{prefix}ape": random.normal(ratio, columns),
        f"{prefix}norm.weight": random.near(1, dim),
    }


FOLDERS = (
    TinyDeepseekV4("flash", heads=6, kv_heads=1, head_dim=32, tied=False),
    TinyDeepseekV4(
        "plain positions",
        heads=4,
        kv_heads=1,
        head_dim=64,
        tied=False,
        layers=2,
        ratios=(128, 4),
        window=20,
        listed=0,
        stretched=False,
    ),
)
