"""`scripts/served_models.py` refuses what the program refuses."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

import served_models

MODELS = {model.id: model for model in served_models.read_models()}
SERVED = MODELS["Qwen/Qwen3-0.6B"]


def test_the_list_has_a_hundred_models_each_once() -> None:
    rows = json.loads(served_models.MODELS.read_text("utf-8"))
    assert len(rows) == len(MODELS) == 100
    assert all(row.get("like", SERVED.id) in MODELS for row in rows)
    assert {model.use for model in MODELS.values()} == {
        *("generate", "embeddings", "rerank", "classify"),
    }


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"weights": "bin"}, "pytorch_model.bin, a pickle"),
        ({"config": {**SERVED.config, "model_type": "nobody"}}, "model_type 'nobody'"),
        ({"config": {**SERVED.config, "hidden_act": "none"}}, "hidden_act 'none'"),
        ({"config": {**SERVED.config, "num_attention_heads": 7}}, "the 7 query heads"),
        (
            {"config": {**SERVED.config, "quantization_config": {"quant_method": "none"}}},
            "quant_method 'none'",
        ),
        ({"tokenizer": "gpt2-files"}, "tokenizer.json"),
        (
            {
                "gguf": {
                    "architecture": "nobody",
                    "tokenizer": "gpt2",
                    "pre": "qwen2",
                    "quant": "F16",
                }
            },
            "general.architecture 'nobody'",
        ),
        (
            {
                "gguf": {
                    "architecture": "qwen3",
                    "tokenizer": "nobody",
                    "pre": "qwen2",
                    "quant": "F16",
                }
            },
            "tokenizer model 'nobody'",
        ),
    ],
)
def test_the_code_that_loads_a_model_decides(change: dict[str, object], why: str) -> None:
    found = served_models.refusal(dataclasses.replace(SERVED, **change))
    assert why in found
    assert bool(found) is bool(why)


def test_a_row_of_the_table_has_the_reason_without_the_advice() -> None:
    pickled = dataclasses.replace(SERVED, weights="bin")
    why = served_models.refusal(pickled)
    assert served_models._cells(SERVED, "").endswith("| yes | |")
    row = served_models._cells(pickled, why)
    assert re.search(r"\| no \| its weights in pytorch_model.bin, a pickle: [^;.]* \|$", row)
