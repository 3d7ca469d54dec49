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

from models.tiny_encoders import DATA, MODELS, SEPARATOR, TEXTS, TinyEncoder

CLASSES = {0: "no", 1: "maybe", 2: "yes"}


def segments_of(text: list[int], rows: int) -> list[int]:
    """As BertTokenizer gives them to a pair."""
    before = [sum(token == SEPARATOR for token in text[:place]) for place in range(len(text))]
    return [min(count, rows - 1) for count in before]


def found(model: TinyEncoder) -> dict[str, Any]:
    """What the model's data file holds."""
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
            states = result.last_hidden_state[0]
            for name, vector in (
                ("mean", states.mean(0)),
                ("cls", states[0]),
                ("last", states[-1]),
            ):
                data.setdefault(name, []).append(rounded(vector / vector.norm()))
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
