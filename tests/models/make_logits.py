"""Compute `data/*_logits.json`: the tiny models' logits by `transformers`, in float32.

pip install torch transformers && PYTHONPATH=tests:src python tests/models/make_logits.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tiny_models import (
    BASE,
    CONTEXT,
    EPS,
    GEMMA3,
    LLAMA,
    ORIGINAL_CONTEXT,
    QWEN2,
    QWEN3,
    SCALE,
    TOKENS,
)

if TYPE_CHECKING:
    from tiny_models import TinyGemma3, TinyLlama, TinyModel, TinyQwen2, TinyQwen3

DATA = Path(__file__).parent / "data"

SCALED_ROPE = {
    "rope_theta": BASE,
    "factor": SCALE,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}
# A longer original context, so that the factors range from 1 to 8 over the pairs of a head.
LLAMA3_ROPE = SCALED_ROPE | {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def sizes(model: TinyModel) -> dict[str, Any]:
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "tie_word_embeddings": model.tied,
        "attn_implementation": "eager",
    }


def logits(network: transformers.PreTrainedModel, model: TinyModel) -> list[list[float]]:
    """Give the network the model's weights; its logits (tokens, vocabulary)."""
    network.float().eval()
    state = {name: torch.from_numpy(values) for name, values in model.state().items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    network.tie_weights()
    with torch.no_grad():
        rows = network(torch.tensor([TOKENS])).logits[0].tolist()
    return [[float(f"{x:.7g}") for x in row] for row in rows]


def llama(model: TinyLlama) -> dict[str, Any]:
    """Also the factors that Llama 3's scaling divides the frequencies by."""
    divisors = {f"{length}_factor": values for length, values in model.divisors().items()}
    rope = {
        "": {"rope_theta": BASE},
        "llama3": LLAMA3_ROPE,
        "yarn": SCALED_ROPE,
        "longrope": SCALED_ROPE | divisors,
    }[model.scaling]
    parameters = rope | {"rope_type": model.scaling or "default"}
    config = transformers.LlamaConfig(**sizes(model), rope_parameters=parameters)
    network = transformers.LlamaForCausalLM(config)
    result: dict[str, Any] = {"logits": logits(network, model)}
    if model.scaling == "llama3":
        dim = model.head_dim
        plain = BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        factors = (plain / network.model.rotary_emb.inv_freq.double()).tolist()
        result["rope_factors"] = [round(factor, 6) for factor in factors]
    return result


def qwen2(model: TinyQwen2) -> dict[str, Any]:
    rope = {"rope_theta": BASE, "rope_type": "default"}
    config = transformers.Qwen2Config(**sizes(model), rope_parameters=rope)
    return {"logits": logits(transformers.Qwen2ForCausalLM(config), model)}


def qwen3(model: TinyQwen3) -> dict[str, Any]:
    rope = {"rope_theta": BASE, "rope_type": "default"}
    config = transformers.Qwen3Config(**sizes(model), rope_parameters=rope)
    return {"logits": logits(transformers.Qwen3ForCausalLM(config), model)}


def gemma3(model: TinyGemma3) -> dict[str, Any]:
    stretched = {"rope_type": "linear", "rope_theta": model.base, "factor": model.factor}
    config = transformers.Gemma3TextConfig(
        **sizes(model),
        query_pre_attn_scalar=model.head_dim,
        sliding_window=model.window,
        sliding_window_pattern=model.period,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": BASE},
            "full_attention": stretched,
        },
    )
    return {"logits": logits(transformers.Gemma3ForCausalLM(config), model)}


def main() -> None:
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for compute, models in ((llama, LLAMA), (qwen2, QWEN2), (qwen3, QWEN3), (gemma3, GEMMA3)):
        result = {"made_with": made_with} | {model.name: compute(model) for model in models}
        text = json.dumps(result).replace("], [", "],\n[").replace('}, "', '},\n"')
        (DATA / f"{compute.__name__}_logits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
