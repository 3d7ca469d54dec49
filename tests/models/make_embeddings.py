"""Compute `data/embeddings.json`: embeddings of the tiny encoders by `transformers`, in float32.

pip install torch transformers
PYTHONPATH=tests:src python tests/models/make_embeddings.py
"""

from __future__ import annotations

import json

import torch
import transformers

from models.tiny.base import DATA
from models.tiny_encoder import MODELS, TOKENS, TinyEmbeddingGemma


def embedding(model: TinyEmbeddingGemma) -> list[float]:
    """The mean of the last hidden states, through the dense layers, of length 1."""
    config = transformers.AutoConfig.for_model(**model.config(), attn_implementation="eager")
    network = transformers.AutoModelForCausalLM.from_config(config)
    network.float().eval()
    state = {name: torch.from_numpy(values) for name, values in model.state().items()}
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        states = network.model(torch.tensor([TOKENS]), use_cache=False).last_hidden_state[0]
        vector = states.mean(dim=0)
        for matrix in model.dense():
            vector = torch.from_numpy(matrix) @ vector
        unit = (vector / vector.norm()).tolist()
    return [float(f"{x:.7g}") for x in unit]


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    found = {"made_with": made_with} | {model.name: embedding(model) for model in MODELS}
    (DATA / "embeddings.json").write_text(json.dumps(found).replace('], "', '],\n"') + "\n")


if __name__ == "__main__":
    main()
