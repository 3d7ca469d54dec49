"""The common part of tiny models: their weights, in Hugging Face's layout and as GGUF files.

The weights come from NumPy's legacy generator, whose stream is frozen for good, so that logits
computed once with `transformers` stay valid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from folder_writer import write_safetensors, write_tokenizer
from gguf_writer import Tensor, write_gguf
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DATA = Path(__file__).parents[1] / "data"
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

    def __init__(self, seed: int = 20) -> None:
        self._stream = np.random.RandomState(seed)

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
    """The value of `model_type` in config.json."""
    gguf_architecture: ClassVar[str] = ""
    """The value of `general.architecture`, where it is another."""
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
    interleaves: ClassVar[bool] = False
    """Whether GGUF interleaves the halves of a head that Hugging Face rotates as pairs."""

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

    def __str__(self) -> str:
        return f"{self.architecture}-{self.name}"

    @property
    def logits_file(self) -> Path:
        """The file of what `transformers` computes for the models of this architecture."""
        return DATA / f"{self.architecture}_logits.json"

    def expected_logits(self) -> np.ndarray:
        """Logits of TOKENS by `transformers`, (tokens, vocabulary)."""
        return np.array(json.loads(self.logits_file.read_text())[self.name])

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
            layer = self.layer_at(i, random)
            state |= {f"model.layers.{i}.{name}": values for name, values in layer.items()}
        state["model.norm.weight"] = random.near(self.norm_mean, self.width)
        if not self.tied:
            state["lm_head.weight"] = random.matrix(self.vocabulary, self.width)
        return state | self.further()

    def further(self) -> dict[str, np.ndarray]:
        """Weights that plain decoding does not use."""
        return {}

    def layer_at(self, index: int, random: Random) -> dict[str, np.ndarray]:
        """The weights of layer `index`, where not all layers have the same parts."""
        return self.layer(random)

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
        architecture = self.gguf_architecture or self.architecture
        prefixed = {f"{architecture}.{key}": value for key, value in keys.items()}
        return {"general.architecture": architecture, **prefixed}

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """The values that GGUF stores for the tensor that `transformers` calls `name`."""
        if not self.interleaves or not ("q_proj" in name or "k_proj" in name):
            return values
        halves = values.reshape(-1, 2, self.head_dim // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    def write(self, path: Path, extra: Iterable[Tensor] = ()) -> Path:
        """Write the model as GGUF, with `extra` tensors."""
        return write_gguf(path, self.metadata(), [*self.tensors(), *extra])

    def write_folder(self, folder: Path, dtype: str = "F32", **changes: object) -> Path:
        """Write the model as a Hugging Face folder, config.json with `changes`."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.changed(changes)))
        state = {self.folder_name(name): values for name, values in self.stored().items()}
        write_safetensors(folder / "model.safetensors", state, dtype)
        write_tokenizer(folder / "tokenizer.json", self.vocabulary)
        return folder

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The content of config.json, with `changes` of the text model."""
        return self.config() | dict(changes)

    def stored(self) -> dict[str, np.ndarray]:
        """Weights as a folder has them."""
        return self.state()

    def folder_name(self, name: str) -> str:
        """The name in a folder of the tensor that `stored` calls `name`."""
        return name

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
        return self.gguf_tensors(self.state())

    def gguf_tensors(self, state: Mapping[str, np.ndarray]) -> list[Tensor]:
        """These tensors as GGUF names and orders them."""
        return [
            Tensor.of(self.gguf_name(name), self.gguf_values(name, values))
            for name, values in state.items()
        ]

    def gguf_name(self, name: str) -> str:
        part, _, kind = name.rpartition(".")
        prefix = ""
        if part.startswith("model.layers."):
            _, _, index, part = part.split(".", 3)
            prefix = f"blk.{index}."
        return f"{prefix}{self.gguf_names[part]}.{kind}"
