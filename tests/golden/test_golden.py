"""Greedy outputs of real models are the committed ones, with eight requests at a time.

`scripts/make_golden.py` makes the files. Where two logits are close, greedy tokens depend on their
last bits. So any change of arithmetic shows here sooner or later.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle import LLM, EngineConfig, SamplingParams, _native

NEW_TOKENS = 48
FEW = slice(0, 6)  # short prompts, for the level that is only correct
FEW_TOKENS = 8

models = pytest.mark.parametrize(
    "alias",
    [
        pytest.param("smollm2-135m", marks=pytest.mark.model),
        pytest.param("gemma3-270m", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.large),
    ],
)


def golden(alias: str) -> list[dict[str, Any]]:
    return json.loads(Path(__file__).with_name(f"{alias}.json").read_text(encoding="utf-8"))


@models
@pytest.mark.parametrize("isa", _native.isa_levels())
def test_greedy_outputs_are_what_they_were(alias: str, isa: str) -> None:
    expected, most = golden(alias), NEW_TOKENS
    assert len(expected) == 20
    if isa == "portable":
        expected, most = expected[FEW], FEW_TOKENS
    with LLM(alias, EngineConfig(slots=8, isa=isa)) as llm:
        prompts = [
            one["prompt"] if "prompt" in one else llm.engine.model.chat_prompt(one["messages"])
            for one in expected
        ]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=most))
    for one, output in zip(expected, outputs, strict=True):
        asked = one.get("prompt", one.get("messages"))
        assert [token.token for token in output.tokens] == one["tokens"][:most], asked
        if most == NEW_TOKENS:
            assert output.text == one["text"], asked
