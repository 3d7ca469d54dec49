"""Small random models of each architecture, in Hugging Face's layout and as GGUF files.

The weights come from NumPy's legacy generator, whose stream is frozen for good, so that logits
computed once with `transformers` stay valid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from folder_writer import write_safetensors, write_tokenizer
from gguf_writer import Tensor, write_gguf
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

CONTEXT = 64
BASE = 10_000.0
EPS = 1e-5
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
# Shorter than TOKENS, so that scalings take effect.
ORIGINAL_CONTEXT = 8
SCALE = CONTEXT / ORIGINAL_CONTEXT
TOKENS = [3, 17, 0, 30, 30, 8, 25, 1, 12, 31, 5, 22]


class Random:
    """Float32 weights from one stream."""

    def __init__(self) -> None:
        self._stream = np.random.RandomState(20)

    def normal(self, *shape: int) -> np.ndarray:
        return self._stream.standard_normal(shape).astype(np.float32)

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        """A matrix whose products keep the magnitude of their input."""
        return (self._stream.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def near(self, mean: float, width: int) -> np.ndarray:
        return (mean + 0.2 * self._stream.standard_normal(width)).astype(np.float32)


@dataclass(frozen=True)
class TinyModel:
    """Shape of one model, and the common part of the architectures."""

    architecture: ClassVar[str]
    gguf_names: ClassVar[dict[str, str]] = {
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
    norm_mean: ClassVar[float] = 1.0

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    layers: int = 2
    width: int = 32
    ffn_width: int = 48
    vocabulary: int = 32
    context: int = CONTEXT

    def config(self) -> dict[str, object]:
        """The content of config.json."""
        return {
            "model_type": self.architecture,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.ffn_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": EPS,
            "tie_word_embeddings": self.tied,
            "rope_parameters": {"rope_theta": BASE, "rope_type": "default"},
        }

    def state(self) -> dict[str, np.ndarray]:
        """Weights under the names of `transformers`."""
        random = Random()
        state = {"model.embed_tokens.weight": random.matrix(self.vocabulary, self.width)}
        for i in range(self.layers):
            layer = self.layer(random)
            state |= {f"model.layers.{i}.{name}": values for name, values in layer.items()}
        state["model.norm.weight"] = random.near(self.norm_mean, self.width)
        if not self.tied:
            state["lm_head.weight"] = random.matrix(self.vocabulary, self.width)
        return state

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        """One layer's weights. Queries and keys are enlarged, so that attention is not uniform."""
        width, q_width, kv_width = self.width, self.q_width, self.kv_width
        return {
            "input_layernorm.weight": random.near(self.norm_mean, width),
            "self_attn.q_proj.weight": 3 * random.matrix(q_width, width),
            "self_attn.k_proj.weight": 3 * random.matrix(kv_width, width),
            "self_attn.v_proj.weight": random.matrix(kv_width, width),
            "self_attn.o_proj.weight": random.matrix(width, q_width),
            "post_attention_layernorm.weight": random.near(self.norm_mean, width),
            "mlp.gate_proj.weight": random.matrix(self.ffn_width, width),
            "mlp.up_proj.weight": random.matrix(self.ffn_width, width),
            "mlp.down_proj.weight": random.matrix(width, self.ffn_width),
        }

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def metadata(self) -> dict[str, object]:
        """The model's hyperparameters under GGUF's keys."""
        keys = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.ffn_width,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": EPS,
            "rope.freq_base": BASE,
            "rope.dimension_count": self.head_dim,
            "vocab_size": self.vocabulary,
        }
        prefixed = {f"{self.architecture}.{key}": value for key, value in keys.items()}
        return {"general.architecture": self.architecture, **prefixed}

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """What GGUF stores for the tensor that `transformers` calls `name`."""
        return values

    def write(self, path: Path, extra: Iterable[Tensor] = ()) -> Path:
        """Write the model as GGUF, with `extra` tensors."""
        return write_gguf(path, self.metadata(), [*self.tensors(), *extra])

    def write_folder(self, folder: Path, dtype: str = "F32", **changes: object) -> Path:
        """Write the model as a Hugging Face folder, config.json with `changes`."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config() | changes))
        write_safetensors(folder / "model.safetensors", self.state(), dtype)
        write_tokenizer(folder / "tokenizer.json", self.vocabulary)
        return folder

    def checkpoint(
        self,
        folder: Path,
        changes: Mapping[str, object] | None = None,
        extra: Iterable[Tensor] = (),
    ) -> GGUFCheckpoint:
        """The model as a checkpoint with `extra` tensors and metadata changed; None drops a key."""
        metadata = {**self.metadata(), **(changes or {})}
        kept = {key: value for key, value in metadata.items() if value is not None}
        return GGUFCheckpoint.open(
            write_gguf(folder / "tiny.gguf", kept, [*self.tensors(), *extra])
        )

    def tensors(self) -> list[Tensor]:
        """The model's tensors as GGUF names and orders them."""
        return [
            Tensor.of(self.gguf_name(name), self.gguf_values(name, values))
            for name, values in self.state().items()
        ]

    def gguf_name(self, name: str) -> str:
        part, _, kind = name.rpartition(".")
        prefix = ""
        if part.startswith("model.layers."):
            _, _, index, part = part.split(".", 3)
            prefix = f"blk.{index}."
        return f"{prefix}{self.gguf_names[part]}.{kind}"


@dataclass(frozen=True)
class TinyLlama(TinyModel):
    """`scaling` is how frequencies are scaled for long contexts: "", llama3, yarn or longrope."""

    architecture = "llama"

    scaling: str = ""

    def metadata(self) -> dict[str, object]:
        if self.scaling not in (
            "yarn",
            "longrope",
        ):  # GGUF stores Llama 3's scaling only as a tensor
            return super().metadata()
        return super().metadata() | {
            "llama.rope.scaling.type": self.scaling,
            "llama.rope.scaling.factor": SCALE,
            "llama.rope.scaling.original_context_length": ORIGINAL_CONTEXT,
        }

    def tensors(self) -> list[Tensor]:
        divisors = self.divisors() if self.scaling == "longrope" else {}
        more = [Tensor.of(f"rope_factors_{k}.weight", np.float32(v)) for k, v in divisors.items()]
        return [*super().tensors(), *more]

    def config(self) -> dict[str, object]:
        rope: dict[str, object] = {"rope_theta": BASE, "rope_type": self.scaling or "default"}
        if self.scaling:
            rope |= {"factor": SCALE, "original_max_position_embeddings": ORIGINAL_CONTEXT}
        if self.scaling == "llama3":  # so that the factors range from 1 to 8 over a head's pairs
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope["original_max_position_embeddings"] = 64
        if self.scaling == "longrope":
            rope |= {f"{length}_factor": values for length, values in self.divisors().items()}
        return super().config() | {"rope_parameters": rope}

    def divisors(self) -> dict[str, list[float]]:
        """Longrope's divisors of each pair's frequency, for short and for long sequences."""
        pairs = self.head_dim // 2
        return {
            "short": [1 + 0.0625 * pair for pair in range(pairs)],
            "long": [1 + 0.75 * pair for pair in range(pairs)],
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Query and key rows interleave the halves that Hugging Face rotates against each other."""
        if "q_proj" not in name and "k_proj" not in name:
            return values
        halves = values.reshape(-1, 2, self.head_dim // 2, self.width)
        return halves.swapaxes(1, 2).reshape(values.shape)

    def write_scaled(self, path: Path, rope_factors: Sequence[float]) -> Path:
        """Write the model with the frequency divisors of Llama 3's scaling, if it has any."""
        if not rope_factors:
            return self.write(path)
        return self.write(path, [Tensor.of("rope_freqs.weight", np.float32(rope_factors))])


@dataclass(frozen=True)
class TinyQwen2(TinyModel):
    architecture = "qwen2"

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_proj.bias": random.normal(self.q_width),
            "self_attn.k_proj.bias": random.normal(self.kv_width),
            "self_attn.v_proj.bias": random.normal(self.kv_width),
        }


@dataclass(frozen=True)
class TinyQwen3(TinyModel):
    architecture = "qwen3"
    gguf_names = TinyModel.gguf_names | HEAD_NORMS

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
        }


@dataclass(frozen=True)
class TinyGemma3(TinyModel):
    """Every `period`-th layer is global, and `factor` stretches positions there."""

    architecture = "gemma3"
    gguf_names = (
        TinyModel.gguf_names
        | HEAD_NORMS
        | {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    )
    norm_mean = 0.0

    tied: bool = True
    window: int = 4
    period: int = 6
    base: float = 100.0
    factor: float = 1.0

    def layer(self, random: Random) -> dict[str, np.ndarray]:
        return super().layer(random) | {
            "self_attn.q_norm.weight": random.near(1, self.head_dim),
            "self_attn.k_norm.weight": random.near(1, self.head_dim),
            "pre_feedforward_layernorm.weight": random.near(0, self.width),
            "post_feedforward_layernorm.weight": random.near(0, self.width),
        }

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "gemma3.attention.sliding_window": self.window,
            "gemma3.rope.freq_base": self.base,
        }
        if self.period != 6:
            keys["gemma3.attention.sliding_window_pattern"] = self.period
        if self.factor != 1:
            keys["gemma3.rope.scaling.type"] = "linear"
            keys["gemma3.rope.scaling.factor"] = self.factor
        return super().metadata() | keys

    def config(self) -> dict[str, object]:
        whole = {"rope_type": "linear", "rope_theta": self.base, "factor": self.factor}
        local = {"rope_type": "default", "rope_theta": BASE}
        return super().config() | {
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": self.head_dim,
            "sliding_window": self.window,
            "layer_types": [
                "sliding_attention" if (layer + 1) % self.period else "full_attention"
                for layer in range(self.layers)
            ],
            "rope_parameters": {"sliding_attention": local, "full_attention": whole},
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Norm weights hold the 1 that `transformers` adds when it uses them."""
        return values + np.float32(1) if "norm" in name else values


PLAIN = TinyLlama("plain", heads=4, kv_heads=2, head_dim=16, tied=True)
LLAMA = (
    PLAIN,
    TinyLlama("scaled", heads=8, kv_heads=2, head_dim=16, tied=False, scaling="llama3"),
    TinyLlama("yarn", heads=4, kv_heads=2, head_dim=16, tied=True, scaling="yarn"),
    TinyLlama("longrope", heads=4, kv_heads=2, head_dim=16, tied=True, scaling="longrope"),
)
QWEN2 = (
    TinyQwen2("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen2("untied", heads=8, kv_heads=1, head_dim=16, tied=False),
)
QWEN3 = (
    TinyQwen3("tied", heads=4, kv_heads=2, head_dim=16, tied=True),
    TinyQwen3("odd heads", heads=3, kv_heads=1, head_dim=48, tied=False),
)
GEMMA3 = (
    TinyGemma3("six to one", heads=4, kv_heads=2, head_dim=16, layers=7),
    TinyGemma3("stretched", heads=2, kv_heads=1, head_dim=16, layers=4, period=2, factor=8.0),
)
