"""Compute `data/llama_logits.json`: the tiny models' logits by `transformers`, in float32.

pip install torch transformers && PYTHONPATH=tests:src python tests/models/make_llama_logits.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_llama import BASE, CONTEXT, EPS, MODELS, TOKENS, TinyLlama

DATA = Path(__file__).parent / "data" / "llama_logits.json"

PLAIN_ROPE = {"rope_type": "default", "rope_theta": BASE}
# A short original context, so that the factors range from 1 to 8 over the pairs of a head.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": BASE,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def compute(model: TinyLlama) -> dict[str, Any]:
    """The factors that scaling divides the frequencies by, and the logits (tokens, vocabulary)."""
    config = transformers.LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=model.width,
        intermediate_size=model.ffn_width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        rope_parameters=LLAMA3_ROPE
        if model.scaled
        else {"rope_theta": BASE, "rope_type": "default"},
        tie_word_embeddings=model.tied,
        attn_implementation="eager",
    )
    llama = transformers.LlamaForCausalLM(config).float().eval()
    state = {name: torch.from_numpy(values) for name, values in model.state().items()}
    missing, unexpected = llama.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    llama.tie_weights()
    with torch.no_grad():
        logits = llama(torch.tensor([TOKENS])).logits[0]
    dim = model.head_dim
    plain = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    factors = (plain / llama.model.rotary_emb.inv_freq.double()).tolist() if model.scaled else []
    return {
        "rope_factors": [round(factor, 6) for factor in factors],
        "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()],
    }


def main() -> None:
    result = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    result |= {model.name: compute(model) for model in MODELS}
    text = json.dumps(result).replace("], [", "],\n[").replace('}, "', '},\n"')
    DATA.write_text(text + "\n")


if __name__ == "__main__":
    main()
