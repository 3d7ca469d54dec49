"""Tiny models of EmbeddingGemma: Gemma 3 with attention to both sides, and dense layers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from folder_writer import write_safetensors
from gguf_writer import Tensor
from heddle.text.tokenizer.vocabulary import TokenType
from models.tiny.base import DATA, Random
from models.tiny.gemma3 import TinyGemma3

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TOKENS = [i * i % 31 for i in range(45)]
"""A text that is longer than a page, and than both sides of a window."""
PROMPTS = {"query": "AB", "document": "C"}


@dataclass(frozen=True)
class TinyEmbeddingGemma(TinyGemma3):
    """`window` counts on both sides together. `dense_width` is the width between dense layers."""

    architecture = "gemma-embedding"

    dense_width: int = 0
    pooling_type: int = 1

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "gemma-embedding.pooling_type": self.pooling_type,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [chr(ord("A") + id) for id in range(self.vocabulary)],
            "tokenizer.ggml.token_type": np.full(self.vocabulary, TokenType.NORMAL, np.int32),
            "tokenizer.ggml.merges": [],
        }
        if self.dense_width:
            keys["gemma-embedding.dense_2_feat_out"] = self.dense_width
            keys["gemma-embedding.dense_3_feat_out"] = self.width
        renamed = {
            key.replace("gemma3.", "gemma-embedding."): value
            for key, value in super().metadata().items()
        }
        return renamed | keys

    def config(self) -> dict[str, object]:
        return super().config() | {"use_bidirectional_attention": True}

    def dense(self) -> list[np.ndarray]:
        """The matrices of the dense layers."""
        if not self.dense_width:
            return []
        random, inner = Random(), self.dense_width
        return [random.matrix(inner, self.width), random.matrix(self.width, inner)]

    def write(self, path: Path, extra: Iterable[Tensor] = ()) -> Path:
        dense = enumerate(self.dense(), 2)
        named = [Tensor.of(f"dense_{i}.weight", values) for i, values in dense]
        return super().write(path, [*named, *extra])

    def write_folder(self, folder: Path, dtype: str = "F32", **changes: object) -> Path:
        """Write the folder as sentence-transformers does: without `model.` in names of tensors."""
        super().write_folder(folder, dtype, **changes)
        state = {name.removeprefix("model."): values for name, values in self.state().items()}
        write_safetensors(folder / "model.safetensors", state, dtype)
        modules = ["Transformer", "Pooling", *["Dense"] * len(self.dense()), "Normalize"]
        entries = [
            {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"x.{kind}"}
            for i, kind in enumerate(modules)
        ]
        write_json(folder / "modules.json", entries)
        write_json(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
        for i, values in enumerate(self.dense(), 2):
            identity = "torch.nn.modules.linear.Identity"
            config = {"out_features": len(values), "activation_function": identity}
            write_json(folder / f"{i}_Dense/config.json", config)
            tensors = {"linear.weight": values}
            write_safetensors(folder / f"{i}_Dense/model.safetensors", tensors)
        prompts = {"prompts": PROMPTS, "default_prompt_name": "document"}
        write_json(folder / "config_sentence_transformers.json", prompts)
        return folder

    def expected_embedding(self) -> np.ndarray:
        """The embedding (width,) of TOKENS by `transformers`."""
        return np.array(json.loads((DATA / "embeddings.json").read_text())[self.name])


def write_json(path: Path, value: object) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


MODELS = (
    TinyEmbeddingGemma("windows", heads=4, kv_heads=2, head_dim=16, layers=4, window=9, period=3),
    TinyEmbeddingGemma(
        "dense", heads=3, kv_heads=1, head_dim=48, width=96, layers=2, dense_width=80
    ),
)
