"""The KL divergence of Heddle and of llama.cpp from the float32 reference, for each next token.

llama.cpp's figures were measured with `scripts/make_kl_reference.py` on the same tokens against the
same reference. The text is this repository's own.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence import divergences, mean_kl

from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.folders import cache_home
from heddle.state import PAGE_TOKENS
from heddle.step import Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.sources import find

DATA = Path(__file__).parent / "data"
LLAMA_CPP: dict[str, dict[str, Any]] = {
    alias: json.loads((DATA / f"kl-{alias}.json").read_text())
    for alias in ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b")
}
ALLOWANCE = {"f16": 1.1, "q8_0": 1.35}
"""Times llama.cpp's figures, which are with keys and values in f16. Measured with q8_0: 1.26 on
SmolLM2. It was 1.14 when only keys and values were codes, and not queries and weights."""

Q4_0_OF_LLAMA_CPP = {"kl_mean": 0.0441, "kl_median": 0.0308}
"""On SmolLM2, with keys and values in q4_0, which it rotates by default: printed by
`scripts/make_kl_reference.py smollm2-135m --kv-type q4_0`. Without the rotation
(LLAMA_ATTN_ROT_DISABLE=1): 0.1233 and 0.0940. Heddle's q4: 0.0386 and 0.0293."""


@pytest.mark.parametrize("alias", LLAMA_CPP)
def test_the_recorded_figures_belong_to_the_current_text(alias: str) -> None:
    text, measured = (DATA / "text.txt").read_bytes(), LLAMA_CPP[alias]
    assert hashlib.sha256(text).hexdigest() == measured["text"]["sha256"]
    assert len(measured["tokens"]) == measured["positions"] >= 512


def test_mean_kl_is_the_formula() -> None:
    p, q = np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]), np.array([[0.25, 0.5, 0.25]] * 2)
    expected = np.mean([(a * np.log(a / b)).sum() for a, b in zip(p, q, strict=True)])
    logits, other = np.log(p) + 3, np.log(q) - [[700], [5]]
    assert mean_kl(logits, other) == pytest.approx(expected, rel=1e-12)
    assert mean_kl(logits, logits + 1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("alias", "kv_type"),
    [
        pytest.param("smollm2-135m", "f16", marks=pytest.mark.model),
        pytest.param("smollm2-135m", "q8_0", marks=pytest.mark.model),
        pytest.param("gemma3-270m", "f16", marks=pytest.mark.large),
        pytest.param("gemma3-270m", "q8_0", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-1.5b", "f16", marks=pytest.mark.large),
    ],
)
def test_kl_is_not_far_above_llama_cpp(
    alias: str, kv_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The median too: nearly all of llama.cpp's mean on Qwen is 5.6 nats at the first position."""
    measured = LLAMA_CPP[alias]
    checkpoint = GGUFCheckpoint.open(find(alias, cache_home()).path)
    own = executor_logits(checkpoint, measured["tokens"], kv_type)
    kl = divergences(ReferenceModel(checkpoint).logits(measured["tokens"]), own)
    ours = {"kl_mean": kl.mean(), "kl_median": np.median(kl)}
    theirs = measured["llama_cpp"]["token_by_token"]
    with capsys.disabled():
        for name, value in ours.items():
            print(f"\n{alias}, {kv_type}, {len(kl)} positions, {name}: ", end="")
            print(f"Heddle {value:.6f}, llama.cpp {theirs[name]:.6f}", end="")
    for name, value in ours.items():
        assert value <= ALLOWANCE[kv_type] * theirs[name], name


@pytest.mark.model
def test_kl_with_keys_and_values_in_four_bits_is_below_that_of_llama_cpp() -> None:
    checkpoint = GGUFCheckpoint.open(find("smollm2-135m", cache_home()).path)
    tokens = LLAMA_CPP["smollm2-135m"]["tokens"]
    own = executor_logits(checkpoint, tokens, "q4")
    kl = divergences(ReferenceModel(checkpoint).logits(tokens), own)
    assert kl.mean() < Q4_0_OF_LLAMA_CPP["kl_mean"]
    assert np.median(kl) < Q4_0_OF_LLAMA_CPP["kl_median"]


def executor_logits(checkpoint: GGUFCheckpoint, tokens: list[int], kv_type: str) -> np.ndarray:
    """Logits (T, vocabulary) of the CPU executor, one token a step; any chunks give equal bits."""
    config = EngineConfig(slots=1, context=len(tokens), threads=2, kv_type=kv_type)
    executor = load(checkpoint, config)
    rows = []
    for position, token in enumerate(tokens):
        pages = range(position // PAGE_TOKENS + 1)
        chunk = Chunk(slot=0, start=position, tokens=[token], pages=pages, sample=True)
        rows.append(executor.logits(StepPlan(bindings=(), chunks=(chunk,))))
    executor.close()
    return np.concatenate(rows)
