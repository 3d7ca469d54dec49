"""Small random Llama models, in Hugging Face's layout and as GGUF files.

The weights come from NumPy's legacy generator, whose stream is frozen for good, so that logits
computed once with `transformers` stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gguf_writer import Tensor, write_gguf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTEXT = 64
BASE = 10_000.0
EPS = 1e-5
TOKENS = [3, 17, 0, 30, 30, 8, 25, 1, 12, 31, 5, 22]


@dataclass(frozen=True)
class TinyLlama:
    """Shape of one model. `scaled` asks for Llama 3's long-context frequencies."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    scaled: bool
    layers: int = 2
    width: int = 32
    ffn_width: int = 48
    vocabulary: int = 32

    def state(self) -> dict[str, np.ndarray]:
        """Weights under the names of `transformers`' LlamaForCausalLM."""
        random = np.random.RandomState(20)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

        def vector() -> np.ndarray:
            return (1 + 0.2 * random.standard_normal(self.width)).astype(np.float32)

        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        state = {"model.embed_tokens.weight": matrix(self.vocabulary, self.width)}
        for i in range(self.layers):
            # Queries and keys are enlarged so that attention is far from uniform.
            state |= {
                f"model.layers.{i}.input_layernorm.weight": vector(),
                f"model.layers.{i}.self_attn.q_proj.weight": 3 * matrix(q_width, self.width),
                f"model.layers.{i}.self_attn.k_proj.weight": 3 * matrix(kv_width, self.width),
                f"model.layers.{i}.self_attn.v_proj.weight": matrix(kv_width, self.width),
                f"model.layers.{i}.self_attn.o_proj.weight": matrix(self.width, q_width),
                f"model.layers.{i}.post_attention_layernorm.weight": vector(),
                f"model.layers.{i}.mlp.gate_proj.weight": matrix(self.ffn_width, self.width),
                f"model.layers.{i}.mlp.up_proj.weight": matrix(self.ffn_width, self.width),
                f"model.layers.{i}.mlp.down_proj.weight": matrix(self.width, self.ffn_width),
            }
        state["model.norm.weight"] = vector()
        if not self.tied:
            state["lm_head.weight"] = matrix(self.vocabulary, self.width)
        return state

    def metadata(self) -> dict[str, object]:
        """The model's hyperparameters under GGUF's keys."""
        return {
            "general.architecture": "llama",
            "llama.block_count": self.layers,
            "llama.context_length": CONTEXT,
            "llama.embedding_length": self.width,
            "llama.feed_forward_length": self.ffn_width,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head_dim,
            "llama.attention.value_length": self.head_dim,
            "llama.attention.layer_norm_rms_epsilon": EPS,
            "llama.rope.freq_base": BASE,
            "llama.rope.dimension_count": self.head_dim,
            "llama.vocab_size": self.vocabulary,
        }

    def write(self, path: Path, rope_factors: Sequence[float] = ()) -> Path:
        """Write the model as GGUF; `rope_factors` are what Llama 3's scaling divides by."""
        tensors = [
            Tensor.of(_gguf_name(name), self._gguf_layout(name, values))
            for name, values in self.state().items()
        ]
        if rope_factors:
            tensors.append(Tensor.of("rope_freqs.weight", np.array(rope_factors, np.float32)))
        return write_gguf(path, self.metadata(), tensors)

    def _gguf_layout(self, name: str, values: np.ndarray) -> np.ndarray:
        """Query and key rows interleave the halves that Hugging Face rotates against each other."""
        if "q_proj" not in name and "k_proj" not in name:
            return values
        halves = values.reshape(-1, 2, self.head_dim // 2, self.width)
        return halves.swapaxes(1, 2).reshape(values.shape)


PLAIN = TinyLlama("plain", heads=4, kv_heads=2, head_dim=8, tied=True, scaled=False)
SCALED = TinyLlama("scaled", heads=8, kv_heads=2, head_dim=16, tied=False, scaled=True)
MODELS = (PLAIN, SCALED)

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    part = name.removesuffix(".weight")
    prefix = ""
    if part.startswith("model.layers."):
        _, _, index, part = part.split(".", 3)
        prefix = f"blk.{index}."
    return f"{prefix}{_GGUF_NAMES[part]}.weight"
