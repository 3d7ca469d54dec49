"""The common part of tiny models with latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, ORIGINAL_CONTEXT, SCALE, TinyModel
from models.tiny.base_mixture import GGUF_NAMES, TinyMixture

if TYPE_CHECKING:
    from models.tiny.base import Random

EPS = 1e-6
"""`transformers` has this epsilon in the norms of latents, whatever config.json says."""
EXPERT_SCALE = 1.75
_MSCALE = 0.7


@dataclass(frozen=True)
class TinyLatent(TinyMixture):
    """A latent of `rank` elements. Of the `head_dim` elements of a query, `rope_dim` are rotated.

    With `fused`, the GGUF file has keys and values of heads as one matrix, as files from before
    May 2025 do.
    """

    gguf_architecture = "deepseek2"
    gguf_names = (
        GGUF_NAMES
        | {
            "self_attn.q_a_proj": "attn_q_a",
            "self_attn.q_a_layernorm": "attn_q_a_norm",
            "self_attn.q_b_proj": "attn_q_b",
            "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
            "self_attn.kv_a_layernorm": "attn_kv_a_norm",
            "self_attn.kv_b_proj": "attn_kv_b",
        }
        | {
            f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        }
    )
    count_key = "n_routed_experts"

    layers: int = 3
    rank: int = 48
    rope_dim: int = 16
    value_dim: int = 20
    query_rank: int = 0
    experts: int = 8
    groups: int = 1
    groups_used: int = 1
    shared: int = 2
    dense: int = 1
    stretched: bool = False
    fused: bool = False
    biased: bool = True

    @property
    def key_dim(self) -> int:
        return self.head_dim - self.rope_dim

    def config(self) -> dict[str, object]:
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": BASE}
        if self.stretched:
            rope |= {"rope_type": "yarn", "factor": SCALE, "mscale": _MSCALE}
            rope |= {"mscale_all_dim": _MSCALE}
            rope |= {"original_max_position_embeddings": ORIGINAL_CONTEXT}
        common = super().config()
        del common["head_dim"]
        return common | {
            "rms_norm_eps": EPS,
            "kv_lora_rank": self.rank,
            "q_lora_rank": self.query_rank or None,
            "qk_rope_head_dim": self.rope_dim,
            "qk_nope_head_dim": self.key_dim,
            "v_head_dim": self.value_dim,
            "n_shared_experts": self.shared,
            "first_k_dense_replace": self.dense,
            "routed_scaling_factor": EXPERT_SCALE,
            "rope_parameters": rope,
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "attention.layer_norm_rms_epsilon": EPS,
            "attention.kv_lora_rank": self.rank,
            "attention.value_length": self.value_dim,
            "rope.dimension_count": self.rope_dim,
            "expert_shared_count": self.shared,
            "expert_weights_scale": EXPERT_SCALE,
            "leading_dense_block_count": self.dense,
        }
        if not self.fused:
            keys |= {
                "attention.head_count_kv": 1,
                "attention.key_length": self.rank + self.rope_dim,
                "attention.value_length": self.rank,
                "attention.key_length_mla": self.head_dim,
                "attention.value_length_mla": self.value_dim,
            }
        if self.query_rank:
            keys["attention.q_lora_rank"] = self.query_rank
        if self.groups > 1:
            keys |= {"expert_group_count": self.groups, "expert_group_used_count": self.groups_used}
        if self.stretched:
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": SCALE,
                "rope.scaling.original_context_length": ORIGINAL_CONTEXT,
                "rope.scaling.yarn_log_multiplier": 0.1 * _MSCALE,
            }
        prefix = self.gguf_architecture
        return super().metadata() | {f"{prefix}.{key}": value for key, value in keys.items()}

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        layer = super().layer(random)
        for part in ("q", "k", "v", "o"):
            del layer[f"self_attn.{part}_proj.weight"]
        return layer | self.attention(random)

    def attention(self, random: Random) -> dict[str, np.ndarray]:
        """The weights of attention. Queries are enlarged, so that attention is not uniform."""
        heads, width, rank = self.heads, self.width, self.rank
        found: dict[str, np.ndarray] = {}
        source = self.query_rank or width
        if self.query_rank:
            found["self_attn.q_a_proj.weight"] = random.matrix(source, width)
            found["self_attn.q_a_layernorm.weight"] = random.near(1, source)
        name = "q_b_proj" if self.query_rank else "q_proj"
        rows = heads * (self.key_dim + self.value_dim)
        return found | {
            f"self_attn.{name}.weight": 3 * random.matrix(heads * self.head_dim, source),
            "self_attn.kv_a_proj_with_mqa.weight": random.matrix(rank + self.rope_dim, width),
            "self_attn.kv_a_layernorm.weight": random.near(1, rank),
            "self_attn.kv_b_proj.weight": random.matrix(rows, rank),
            "self_attn.o_proj.weight": random.matrix(width, heads * self.value_dim),
        }

    def mixture(self, random: Random) -> dict[str, np.ndarray]:
        width, hidden = self.width, self.expert_width * self.shared
        found = super().mixture(random) | {
            "mlp.shared_experts.gate_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.up_proj.weight": random.matrix(hidden, width),
            "mlp.shared_experts.down_proj.weight": random.matrix(width, hidden),
        }
        if self.biased:
            found["mlp.gate.e_score_correction_bias"] = 0.3 * random.normal(self.experts)
        return found

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        mixed, dense = self.layer(random), TinyModel.layer(self, random)
        if index >= self.dense:
            return mixed
        kept = {name: values for name, values in mixed.items() if not name.startswith("mlp.")}
        return kept | {name: values for name, values in dense.items() if name.startswith("mlp.")}

    def gguf_name(self, name: str) -> str:
        before, bias, _ = name.partition("gate.e_score_correction_bias")
        return f"blk.{before.split('.')[2]}.exp_probs_b.bias" if bias else super().gguf_name(name)

    def tensors(self) -> list[Tensor]:
        found = []
        for tensor in super().tensors():
            found += [tensor] if self.fused else self._apart(tensor)
        return found

    def _apart(self, tensor: Tensor) -> list[Tensor]:
        """Keys and values of heads as two tensors, the keys transposed."""
        if "attn_kv_b" not in tensor.name:
            return [tensor]
        matrix = np.frombuffer(tensor.data, np.float32).reshape(self.heads, -1, self.rank)
        keys = np.ascontiguousarray(matrix[:, : self.key_dim].swapaxes(1, 2))
        values = np.ascontiguousarray(matrix[:, self.key_dim :])
        return [
            Tensor.of(tensor.name.replace("kv_b", part), one)
            for part, one in (("k_b", keys), ("v_b", values))
        ]
