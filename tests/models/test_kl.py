"""How far Heddle's next-token distributions are from the float32 reference, and llama.cpp's.

llama.cpp's figure was measured with `scripts/make_kl_reference.py` on the same tokens against the
same reference. The text is this repository's own.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from divergence import mean_kl

from heddle.config import EngineConfig
from heddle.runner.cpu import load
from heddle.runner.reference import ReferenceModel
from heddle.step import PAGE_TOKENS, Chunk, StepPlan
from heddle.weights.gguf import GGUFFile

DATA = Path(__file__).parent / "data"
LLAMA_CPP = json.loads((DATA / "kl.json").read_text())
TOKENS = LLAMA_CPP["tokens"]
ALLOWANCE = 1.1


def test_the_figure_is_of_the_text_that_is_here() -> None:
    text = (DATA / "text.txt").read_bytes()
    assert hashlib.sha256(text).hexdigest() == LLAMA_CPP["text"]["sha256"]
    assert len(TOKENS) == LLAMA_CPP["positions"] == 512


def test_mean_kl_is_the_formula() -> None:
    p, q = np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]), np.array([[0.25, 0.5, 0.25]] * 2)
    expected = np.mean([(a * np.log(a / b)).sum() for a, b in zip(p, q, strict=True)])
    logits, other = np.log(p) + 3, np.log(q) - [[700], [5]]
    assert mean_kl(logits, other) == pytest.approx(expected, rel=1e-12)
    assert mean_kl(logits, logits + 1) == pytest.approx(0, abs=1e-12)


@pytest.mark.model
def test_mean_kl_is_at_most_a_tenth_above_llama_cpp(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with GGUFFile.open(model_path) as file:
        reference = ReferenceModel(file).logits(TOKENS)
        ours = mean_kl(reference, executor_logits(file))
    theirs = LLAMA_CPP["llama_cpp"]["token_by_token"]["kl_mean"]
    with capsys.disabled():
        print(f"\nmean KL over {len(TOKENS)} positions: Heddle {ours:.6f}, llama.cpp {theirs:.6f}")
    assert ours <= ALLOWANCE * theirs


def executor_logits(file: GGUFFile) -> np.ndarray:
    """Logits (T, vocabulary) of the CPU executor, one token a step; other chunks are bit-equal."""
    executor = load(file, EngineConfig(slots=1, context=len(TOKENS), threads=2))
    rows = []
    for position, token in enumerate(TOKENS):
        pages = range(position // PAGE_TOKENS + 1)
        chunk = Chunk(slot=0, start=position, tokens=[token], pages=pages, sample=True)
        rows.append(executor.logits(StepPlan(bindings=(), chunks=(chunk,))))
    executor.close()
    return np.concatenate(rows)
