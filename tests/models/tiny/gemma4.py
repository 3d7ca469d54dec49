"""Tiny models of Gemma 4: layers that differ in shape, share keys and values, have own inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, HEAD_NORMS, Random, TinyModel

_MOE_NAMES = {
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
}
_WHOLE_NAMES = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
"""GGUF's names of tensors that do not end in `.weight` in Hugging Face's folders."""


@dataclass(frozen=True)
class TinyGemma4(TinyModel):
    """Every `period`-th layer is global, with heads of `global_dim` elements.

    The last `shared` layers have no keys and values. Each layer has an input of `input_width`.
    """

    architecture = "gemma4_text"
    gguf_architecture = "gemma4"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | _MOE_NAMES
        | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
            "rope_freqs": "rope_freqs",
        }
    )

    tied: bool = True
    window: int = 4
    period: int = 3
    global_dim: int = 32
    global_kv_heads: int = 1
    keys_as_values: bool = False
    shared: int = 0
    double: bool = False
    input_width: int = 0
    cap: float = 0.0
    share: float = 0.25
    experts: int = 0
    used: int = 2
    expert_width: int = 20

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def has_kv(self, layer: int) -> bool:
        return layer < self.layers - self.shared

    def kv_heads_of(self, layer: int) -> int:
        whole = self.is_global(layer) and self.keys_as_values
        return self.global_kv_heads if whole else self.kv_heads

    def dim_of(self, layer: int) -> int:
        return self.global_dim if self.is_global(layer) else self.head_dim

    def hidden_of(self, layer: int) -> int:
        return self.ffn_width * (1 if self.has_kv(layer) or not self.double else 2)

    def state(self) -> dict[str, np.ndarray]:
        state = super().state()
        if self.input_width:
            random, total = _random(7), self.layers * self.input_width
            state |= {
                "model.embed_tokens_per_layer.weight": random.matrix(self.vocabulary, total),
                "model.per_layer_model_projection.weight": random.matrix(total, self.width),
                "model.per_layer_projection_norm.weight": random.near(1, self.input_width),
            }
        return state

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        width, dim, hidden = self.width, self.dim_of(index), self.hidden_of(index)
        q_width, kv_width = self.heads * dim, self.kv_heads_of(index) * dim
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        layer = {
            "self_attn.q_proj.weight": random.matrix(q_width, width),
            "self_attn.q_norm.weight": random.near(0.5, dim),
            "self_attn.o_proj.weight": random.matrix(width, q_width),
            "mlp.gate_proj.weight": random.matrix(hidden, width),
            "mlp.up_proj.weight": random.matrix(hidden, width),
            "mlp.down_proj.weight": random.matrix(width, hidden),
            "layer_scalar": random.near(0.8, 1),
            **{f"{norm}_layernorm.weight": random.near(1, width) for norm in norms},
        }
        if self.has_kv(index):
            layer["self_attn.k_proj.weight"] = random.matrix(kv_width, width)
            layer["self_attn.k_norm.weight"] = random.near(0.5, dim)
            if not (self.keys_as_values and self.is_global(index)):
                layer["self_attn.v_proj.weight"] = random.matrix(kv_width, width)
        if self.input_width:
            layer |= {
                "per_layer_input_gate.weight": random.matrix(self.input_width, width),
                "per_layer_projection.weight": random.matrix(width, self.input_width),
                "post_per_layer_input_norm.weight": random.near(1, width),
            }
        return layer | (self._mixture(random) if self.experts else {})

    def _mixture(self, random: Random) -> dict[str, np.ndarray]:
        """The router is enlarged, so that rounding changes no choice."""
        width, hidden, count = self.width, self.expert_width, self.experts
        norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
        return {
            **{f"{norm}.weight": random.near(1, width) for norm in norms},
            "pre_feedforward_layernorm_2.weight": random.near(1, width),
            "router.proj.weight": 20 * random.matrix(count, width),
            "router.scale": random.near(1, width),
            "router.per_expert_scale": random.near(1, count),
            "experts.gate_up_proj": np.stack(
                [random.matrix(2 * hidden, width) for _ in range(count)]
            ),
            "experts.down_proj": np.stack([random.matrix(width, hidden) for _ in range(count)]),
        }

    def config(self) -> dict[str, object]:
        kinds = ("sliding_attention", "full_attention")
        whole = {"rope_type": "proportional", "rope_theta": 100.0}
        return super().config() | {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": self.window,
            "layer_types": [kinds[self.is_global(layer)] for layer in range(self.layers)],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": BASE},
                "full_attention": whole | {"partial_rotary_factor": self.share},
            },
            "global_head_dim": self.global_dim,
            "num_global_key_value_heads": self.global_kv_heads,
            "attention_k_eq_v": self.keys_as_values,
            "num_kv_shared_layers": self.shared,
            "use_double_wide_mlp": self.double,
            "hidden_size_per_layer_input": self.input_width,
            "vocab_size_per_layer_input": self.vocabulary,
            "final_logit_softcapping": self.cap or None,
            "enable_moe_block": self.experts > 0,
            "num_experts": self.experts or None,
            "top_k_experts": self.used,
            "moe_intermediate_size": self.expert_width,
        }

    def metadata(self) -> dict[str, object]:
        layers = range(self.layers)
        keys: dict[str, object] = {
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array([not self.is_global(i) for i in layers]),
            "attention.shared_kv_layers": self.shared,
            "attention.head_count_kv": np.array([self.kv_heads_of(i) for i in layers], np.int32),
            "attention.key_length": self.global_dim,
            "attention.value_length": self.global_dim,
            "attention.key_length_swa": self.head_dim,
            "attention.value_length_swa": self.head_dim,
            "embedding_length_per_layer_input": self.input_width,
            "rope.freq_base": 100.0,
            "rope.freq_base_swa": BASE,
            "rope.dimension_count": self.global_dim,
            "rope.dimension_count_swa": self.head_dim,
        }
        if self.double:
            keys["feed_forward_length"] = np.array([self.hidden_of(i) for i in layers], np.int32)
        if self.cap:
            keys["final_logit_softcapping"] = self.cap
        if self.experts:
            keys |= {
                "expert_count": self.experts,
                "expert_used_count": self.used,
                "expert_feed_forward_length": self.expert_width,
            }
        return super().metadata() | {f"gemma4.{key}": value for key, value in keys.items()}

    def tensors(self) -> list[Tensor]:
        """llama.cpp's converter writes the divisors of global layers as a tensor."""
        pairs = self.global_dim // 2
        rotated = int(self.share * pairs)
        divisors = np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)
        return [*super().tensors(), Tensor.of("rope_freqs.weight", divisors)]

    def gguf_name(self, name: str) -> str:
        for stored, other in _WHOLE_NAMES.items():
            if name.endswith(f".{stored}"):
                return f"blk.{name.split('.')[2]}.{other}"
        return super().gguf_name(name)


def _random(skipped: int) -> Random:
    """A stream of its own, for tensors outside the layers."""
    random = Random()
    random.normal(skipped)
    return random


MODELS = (
    TinyGemma4(
        "shared",
        heads=6,
        kv_heads=3,
        head_dim=16,
        layers=9,
        cap=5.0,
        shared=3,
        double=True,
        input_width=10,
    ),
    TinyGemma4("dense", heads=6, kv_heads=3, head_dim=16, layers=6),
    TinyGemma4("keys as values", heads=6, kv_heads=3, head_dim=16, layers=3, keys_as_values=True),
    TinyGemma4("experts", heads=6, kv_heads=2, head_dim=16, layers=3, experts=7, used=3),
)
