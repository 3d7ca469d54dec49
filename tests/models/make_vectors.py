"""Compute `data/encoders/*.json`: what `transformers` says of the tiny encoders, in float32.

pip install torch transformers
PYTHONPATH=tests:src python tests/models/make_vectors.py [NAME]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers

from models.tiny_encoders import DATA, MODELS, SEPARATOR, TEXTS, TinyEncoder, jina_shapes

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


def found_of_jina(model: TinyEncoder) -> dict[str, Any]:
    """What the data file of Jina's BERT holds."""
    made_with = f"torch {torch.__version__}"
    data: dict[str, Any] = {"made_with": made_with, "shapes": jina_shapes()}
    for text in TEXTS:
        add_vectors(data, jina_states(model, text))
    return data


def add_vectors(data: dict[str, Any], states: torch.Tensor) -> None:
    """Add the vectors of a text with these states, by pooling."""
    for name, vector in (("mean", states.mean(0)), ("cls", states[0]), ("last", states[-1])):
        data.setdefault(name, []).append(rounded(vector / vector.norm()))


def found(model: TinyEncoder) -> dict[str, Any]:
    """What the model's data file holds."""
    if model.config.get("position_embedding_type") == "alibi":
        return found_of_jina(model)
    auto = (
        transformers.AutoModelForSequenceClassification
        if model.classifies
        else transformers.AutoModel
    )
    labels = {"id2label": CLASSES} if model.classifies else {}
    options = {**model.config, **labels, "attn_implementation": "eager"}
    network = auto.from_config(transformers.AutoConfig.for_model(**options)).float().eval()
    shapes = {name: list(one.shape) for name, one in network.state_dict().items()}
    network.load_state_dict({n: torch.from_numpy(v) for n, v in model.state(shapes).items()})
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
