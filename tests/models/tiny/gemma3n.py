"""Tiny models of Gemma 3n: streams of hidden states, and layers that cut most of their gates."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, HEAD_NORMS, Random, TinyModel

GLOBAL_BASE = 100.0
_STACKS = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}


@dataclass(frozen=True)
class TinyGemma3n(TinyModel):
    """Every `period`-th layer is global. The last `shared` layers have no keys and values."""

    architecture = "gemma3n_text"
    gguf_architecture = "gemma3n"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
            "altup.router_norm": "altup_router_norm",
            "altup.modality_router": "altup_router",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.correction_coefs": "altup_correct_coef",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
        }
    )

    tied: bool = True
    window: int = 4
    period: int = 3
    shared: int = 0
    streams: int = 4
    active: int = 0
    rank: int = 64
    input_width: int = 12
    input_rows: int = 0
    sparse: tuple[float, ...] = ()
    cap: float = 30.0

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def sparsity(self) -> list[float]:
        return [*self.sparse, *[0.0] * (self.layers - len(self.sparse))]

    @property
    def rows(self) -> int:
        return self.input_rows or self.vocabulary

    def state(self) -> dict[str, np.ndarray]:
        random, total, width = Random(21), self.layers * self.input_width, self.width
        return super().state() | {
            "model.embed_tokens_per_layer.weight": random.matrix(self.rows, total),
            "model.per_layer_model_projection.weight": random.matrix(total, width),
            "model.per_layer_projection_norm.weight": random.near(1, self.input_width),
            **{
                f"model.{name}.{i}.weight": random.matrix(width, width)
                for name in _STACKS
                for i in range(self.streams - 1)
            },
        }

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        """Routers read a norm divided by the width, so their matrices are enlarged."""
        width, streams = self.width, self.streams
        return {
            **super().layer(random),
            "self_attn.q_norm.weight": random.near(0.5, self.head_dim),
            "self_attn.k_norm.weight": random.near(0.5, self.head_dim),
            "pre_feedforward_layernorm.weight": random.near(1, width),
            "post_feedforward_layernorm.weight": random.near(1, width),
            "altup.correct_output_scale": random.near(1, width),
            "altup.correction_coefs.weight": random.matrix(streams, streams),
            "altup.prediction_coefs.weight": 0.5 * random.matrix(streams**2, streams),
            "altup.modality_router.weight": width * random.matrix(streams, width),
            "altup.router_norm.weight": random.near(1, width),
            "laurel.linear_left.weight": random.matrix(self.rank, width),
            "laurel.linear_right.weight": random.matrix(width, self.rank),
            "laurel.post_laurel_norm.weight": random.near(1, width),
            "per_layer_input_gate.weight": random.matrix(self.input_width, width),
            "per_layer_projection.weight": random.matrix(width, self.input_width),
            "post_per_layer_input_norm.weight": random.near(1, width),
        }

    def config(self) -> dict[str, object]:
        kinds = ("sliding_attention", "full_attention")
        return super().config() | {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": self.window,
            "layer_types": [kinds[self.is_global(layer)] for layer in range(self.layers)],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": BASE},
                "full_attention": {"rope_type": "default", "rope_theta": GLOBAL_BASE},
            },
            "num_kv_shared_layers": self.shared,
            "hidden_size_per_layer_input": self.input_width,
            "vocab_size_per_layer_input": self.rows,
            "altup_num_inputs": self.streams,
            "altup_active_idx": self.active,
            "laurel_rank": self.rank,
            "activation_sparsity_pattern": self.sparsity(),
            "final_logit_softcapping": self.cap,
        }

    def metadata(self) -> dict[str, object]:
        cuts = [NormalDist().inv_cdf(one) if one else -np.inf for one in self.sparsity()]
        windowed = [not self.is_global(layer) for layer in range(self.layers)]
        keys: dict[str, object] = {
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": np.array(windowed),
            "attention.shared_kv_layers": self.shared,
            "embedding_length_per_layer_input": self.input_width,
            "altup.num_inputs": self.streams,
            "altup.active_idx": self.active,
            "activation_sparsity_scale": np.array(cuts, np.float32),
            "final_logit_softcapping": self.cap,
            "rope.freq_base": GLOBAL_BASE,
        }
        return super().metadata() | {f"gemma3n.{key}": value for key, value in keys.items()}

    def tensors(self) -> list[Tensor]:
        """llama.cpp's converter stacks the matrices of the streams, and fills the table of inputs.

        It takes zeros for the tokens that the table lacks; here is what `transformers` reads.
        """
        state = self.state()
        table = state["model.embed_tokens_per_layer.weight"]
        missing = np.repeat(table[:1], self.vocabulary - self.rows, axis=0)
        state["model.embed_tokens_per_layer.weight"] = np.concatenate([table, missing])
        stacks = []
        for name, stored in _STACKS.items():
            parts = [state.pop(f"model.{name}.{i}.weight") for i in range(self.streams - 1)]
            stacks.append(Tensor.of(f"{stored}.weight", np.stack(parts)))
        return [*self.gguf_tensors(state), *stacks]

    def gguf_name(self, name: str) -> str:
        if name.endswith("altup.correct_output_scale"):
            return f"blk.{name.split('.')[2]}.altup_correct_scale.weight"
        return super().gguf_name(name)


MODELS = (
    TinyGemma3n("shared", heads=4, kv_heads=2, head_dim=16, layers=6, shared=3, sparse=(0.9, 0.6)),
    TinyGemma3n("three", heads=4, kv_heads=2, head_dim=16, layers=3, streams=3, active=1, cap=4.0),
    TinyGemma3n("few rows", heads=4, kv_heads=1, head_dim=16, layers=3, input_rows=30),
)
