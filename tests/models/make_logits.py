"""Compute `data/*_logits.json`: the tiny models' logits by `transformers`, in float32.

pip install torch transformers && PYTHONPATH=tests:src python tests/models/make_logits.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tiny_models import BASE, GEMMA3, LLAMA, QWEN2, QWEN3, TOKENS

if TYPE_CHECKING:
    from tiny_models import TinyModel

DATA = Path(__file__).parent / "data"


def logits(network: transformers.PreTrainedModel, model: TinyModel) -> list[list[float]]:
    """Load the model's weights into the network; return logits (tokens, vocabulary)."""
    network.float().eval()
    state = {name: torch.from_numpy(values) for name, values in model.state().items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    network.tie_weights()
    with torch.no_grad():
        rows = network(torch.tensor([TOKENS])).logits[0].tolist()
    return [[float(f"{x:.7g}") for x in row] for row in rows]


def compute(model: TinyModel) -> dict[str, Any]:
    """The logits, and the factors by which Llama 3's scaling divides frequencies."""
    config = transformers.AutoConfig.for_model(**model.config(), attn_implementation="eager")
    network = transformers.AutoModelForCausalLM.from_config(config)
    result: dict[str, Any] = {"logits": logits(network, model)}
    if getattr(model, "scaling", "") == "llama3":
        dim = model.head_dim
        plain = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        factors = (plain / network.model.rotary_emb.inv_freq.double()).tolist()
        result["rope_factors"] = [round(factor, 6) for factor in factors]
    return result


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for models in (LLAMA, QWEN2, QWEN3, GEMMA3):
        result = {"made_with": made_with} | {model.name: compute(model) for model in models}
        text = json.dumps(result).replace("], [", "],\n[").replace('}, "', '},\n"')
        (DATA / f"{models[0].architecture}_logits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
