"""Tiny folders of sentence-transformers, with vectors that it computed once (make_sentences.py).

`data/sentences.json` has, for each folder, the vectors of TEXTS, by the name of a prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from folder_writer import write_safetensors
from models.tiny.base import DATA
from models.worded_encoders import write_encoder

if TYPE_CHECKING:
    from pathlib import Path

DATA_FILE = DATA / "sentences.json"
TEXTS = ["a loom", "Loom, warps and a warp!", "warps of a loom " * 8, "x, word5 and ü", ""]
PROMPTS = {"query": "query a: ", "document": "loom "}
TRUNCATED, DIMENSIONS = "truncated", 8
"""In the place of a prompt: the default one, and vectors with fewer numbers."""
_WIDTH = 48


@dataclass(frozen=True)
class Dense:
    """A dense layer: the width of its result, the end of its activation's name, its bias."""

    width: int
    activation: str
    bias: bool = True


@dataclass(frozen=True)
class Sentences:
    """A folder: what follows the BERT in it, and its prompts.

    `default_prompt` names that of texts without a named one. `width` is that of vectors.
    """

    name: str
    pooling: str
    dense: tuple[Dense, ...] = ()
    normalizes: bool = True
    default_prompt: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def width(self) -> int:
        return self.dense[-1].width if self.dense else _WIDTH

    def write(self, folder: Path) -> Path:
        """Write the folder."""
        write_encoder(folder)
        tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        named = {**tokens, "unk_token": "[UNK]", "tokenizer_class": "PreTrainedTokenizerFast"}
        _write(folder / "tokenizer_config.json", named)
        _write(folder / "sentence_bert_config.json", {"max_seq_length": 64})
        kinds = ["Transformer", "Pooling", *["Dense"] * len(self.dense)]
        kinds += ["Normalize"] if self.normalizes else []
        modules = [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(kinds)
        ]
        _write(folder / "modules.json", modules)
        modes = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last"}
        pooling = {f"pooling_mode_{mode}": self.pooling == one for mode, one in modes.items()}
        _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": _WIDTH, **pooling})
        random, before = np.random.RandomState(11), _WIDTH
        for i, layer in enumerate(self.dense, 2):
            config = {
                "in_features": before,
                "out_features": layer.width,
                "bias": layer.bias,
                "activation_function": f"torch.nn.modules.{layer.activation}",
            }
            _write(folder / f"{i}_Dense/config.json", config)
            tensors = {"linear.weight": random.standard_normal((layer.width, before)) / 4}
            if layer.bias:
                tensors["linear.bias"] = random.standard_normal(layer.width) / 2
            state = {name: values.astype(np.float32) for name, values in tensors.items()}
            write_safetensors(folder / f"{i}_Dense/model.safetensors", state)
            before = layer.width
        prompts = {"prompts": PROMPTS, "default_prompt_name": self.default_prompt}
        _write(folder / "config_sentence_transformers.json", prompts)
        return folder

    def vectors(self, prompt: str) -> list[list[float]]:
        """What sentence-transformers says of TEXTS with a prompt; empty: with the default one."""
        found: list[list[float]] = json.loads(DATA_FILE.read_text())[self.name][prompt]
        return found


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


_TANH, _IDENTITY = "activation.Tanh", "linear.Identity"
FOLDERS = (
    Sentences("mean", "mean", default_prompt="document"),
    Sentences("cls", "cls", normalizes=False),
    Sentences("last", "last"),
    Sentences("mean-identity", "mean", (Dense(32, _IDENTITY),)),
    Sentences("mean-tanh", "mean", (Dense(32, _TANH),), normalizes=False),
    Sentences("cls-tanh", "cls", (Dense(_WIDTH, _TANH),)),
    Sentences("last-two", "last", (Dense(80, _IDENTITY, bias=False), Dense(16, _TANH))),
)
"""The fifth is made as distiluse-base-multilingual-cased-v2 is, the sixth as LaBSE is."""
