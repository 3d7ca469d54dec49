"""Compute `data/encoders/*.json`: what `transformers` says of the tiny encoders, in float32.

pip install torch transformers
PYTHONPATH=tests:src python tests/models/make_vectors.py [NAME]
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import torch
import transformers

from models.tiny_encoders import (
    DATA,
    MODELS,
    SEPARATOR,
    TEXTS,
    TinyEncoder,
    jina_shapes,
    nomic_moe_shapes,
)

CLASSES = {0: "no", 1: "maybe", 2: "yes"}


def segments_of(text: list[int], rows: int) -> list[int]:
    """As BertTokenizer gives them to a pair."""
    before = [sum(token == SEPARATOR for token in text[:place]) for place in range(len(text))]
    return [min(count, rows - 1) for count in before]


def jina_states(model: TinyEncoder, text: list[int]) -> torch.Tensor:
    """The last hidden states of Jina's BERT (arXiv:2310.19923): BERT's layers, ALiBi, gates."""
    state = {name: torch.from_numpy(values) for name, values in model.state(jina_shapes()).items()}
    config, functional = model.config, torch.nn.functional
    heads, width = config["num_attention_heads"], config["hidden_size"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, (width,), weight, bias, config["layer_norm_eps"])

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(text), heads, -1).transpose(0, 1)

    segments = torch.tensor(segments_of(text, 2))
    x = state["embeddings.word_embeddings.weight"][text]
    x = norm(x + state["embeddings.token_type_embeddings.weight"][segments], "embeddings.LayerNorm")
    places = torch.arange(len(text))
    slopes = torch.tensor([2**-4, 2**-8, 2**-2])  # ALiBi's of three heads
    bias = -slopes[:, None, None] * (places[:, None] - places).abs()
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            by_head(linear(x, f"{layer}.attention.self.{n}")) for n in ("query", "key", "value")
        )
        weights = (q @ k.transpose(1, 2) / (width // heads) ** 0.5 + bias).softmax(-1)
        mixed = (weights @ v).transpose(0, 1).reshape(len(text), width)
        mixed = linear(mixed, f"{layer}.attention.output.dense")
        x = norm(x + mixed, f"{layer}.attention.output.LayerNorm")
        gate, up = linear(x, f"{layer}.mlp.gated_layers").chunk(2, dim=-1)
        x = norm(
            x + linear(functional.gelu(gate) * up, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm"
        )
    return x


def moe_states(model: TinyEncoder, text: list[int]) -> torch.Tensor:
    """The last hidden states of nomic-bert with experts (arXiv:2502.07972)."""
    shapes = nomic_moe_shapes(biased="unbiased" not in model.name)
    state = {name: torch.from_numpy(values) for name, values in model.state(shapes).items()}
    config, functional = model.config, torch.nn.functional
    heads, width, experts = config["n_head"], config["n_embd"], config["num_experts"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, (width,), weight, bias, 1e-12)

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = width // heads // 2
        frequencies = config["rotary_emb_base"] ** (-torch.arange(half) / half)
        angles = torch.arange(len(text))[:, None] * frequencies
        a, b = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def mixture(x: torch.Tensor, name: str) -> torch.Tensor:
        scores = linear(x, f"{name}.router.layer").softmax(-1)
        up = state[f"{name}.experts.mlp.w1"].reshape(experts, -1, width)
        down = state[f"{name}.experts.mlp.w2"].reshape(experts, -1, width)
        y = torch.zeros_like(x)
        for i, row in enumerate(x):
            for expert in scores[i].topk(config["moe_top_k"]).indices.tolist():
                y[i] += scores[i, expert] * (functional.gelu(up[expert] @ row) @ down[expert])
        return y + state.get(f"{name}.experts.bias", 0.0)

    x = state["embeddings.word_embeddings.weight"][text]
    segments = torch.tensor(segments_of(text, 2))
    x = norm(x + state["embeddings.token_type_embeddings.weight"][segments], "emb_ln")
    for i in range(config["n_layer"]):
        layer = f"encoder.layers.{i}"
        parts = linear(x, f"{layer}.attn.Wqkv").chunk(3, -1)
        q, k, v = (one.reshape(len(text), heads, -1).transpose(0, 1) for one in parts)
        weights = (turned(q) @ turned(k).transpose(1, 2) / (width // heads) ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(0, 1).reshape(len(text), width)
        x = norm(x + linear(mixed, f"{layer}.attn.out_proj"), f"{layer}.norm1")
        if i % config["moe_every_n_layers"] == 1:
            y = mixture(x, f"{layer}.mlp")
        else:
            y = linear(functional.gelu(linear(x, f"{layer}.mlp.fc1")), f"{layer}.mlp.fc2")
        x = norm(x + y, f"{layer}.norm2")
    return x


DEFINED = {
    "jina-bert-v2": (jina_states, jina_shapes),
    "nomic-bert-moe": (moe_states, nomic_moe_shapes),
    "nomic-bert-moe-unbiased": (moe_states, partial(nomic_moe_shapes, biased=False)),
}
"""Models that `transformers` lacks: their states, and the shapes of their tensors."""


def found_by_definition(model: TinyEncoder) -> dict[str, Any]:
    """What the data file of a model that `transformers` lacks holds."""
    states, shapes = DEFINED[model.name]
    data: dict[str, Any] = {"made_with": f"torch {torch.__version__}", "shapes": shapes()}
    for text in TEXTS:
        add_vectors(data, states(model, text))
    return data


def add_vectors(data: dict[str, Any], states: torch.Tensor) -> None:
    """Add the vectors of a text with these states, by pooling."""
    for name, vector in (("mean", states.mean(0)), ("cls", states[0]), ("last", states[-1])):
        data.setdefault(name, []).append(rounded(vector / vector.norm()))


def found(model: TinyEncoder) -> dict[str, Any]:
    """What the model's data file holds."""
    if model.name in DEFINED:
        return found_by_definition(model)
    auto = (
        transformers.AutoModelForSequenceClassification
        if model.classifies
        else transformers.AutoModel
    )
    labels = {"id2label": CLASSES} if model.classifies else {}
    options = {**model.config, **labels, "attn_implementation": "eager"}
    network = auto.from_config(transformers.AutoConfig.for_model(**options)).float().eval()
    state = network.state_dict()
    first = {one.data_ptr(): name for name, one in reversed(state.items())}  # of tied ones
    shapes = {name: list(state[name].shape) for name in state if name in first.values()}
    given = {name: torch.from_numpy(values) for name, values in model.state(shapes).items()}
    lacking = network.load_state_dict(given, strict=False)
    assert not lacking.unexpected_keys
    rows = model.config.get("type_vocab_size", 1)
    data: dict[str, Any] = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "shapes": shapes,
    }
    with torch.no_grad():
        for text in TEXTS:
            given = {"input_ids": torch.tensor([text])}
            if rows > 1:
                given["token_type_ids"] = torch.tensor([segments_of(text, rows)])
            result = network(**given)
            if model.classifies:
                data.setdefault("logits", []).append(rounded(result.logits[0]))
                continue
            add_vectors(data, result.last_hidden_state[0])
    return data


def rounded(vector: torch.Tensor) -> list[float]:
    return [float(f"{x:.8g}") for x in vector.tolist()]


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for model in MODELS:
        if model.name in sys.argv[1:] or len(sys.argv) == 1:
            text = json.dumps(found(model)).replace('], "', '],\n"')
            (DATA / f"{model.name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
