"""Logits that are not finite, on each device: whose request fails, and the figures in its error."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined, assignment, return-value"

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_files import GREEDY, PROMPT, SMALL, one_token_plan, page_table, poisoned_file, tiny_file

from devices import load_on
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import (
    NonFiniteLogitsError,
)
from heddle.executor import LogitsSummary
from heddle.executors.failures import summarize
from heddle.step import (
    Binding,
    Chunk,
    Failed,
    Pool,
    Scoring,
    StepPlan,
)
from models.tiny.llama import PLAIN
from steps import execute

pytestmark = pytest.mark.usefixtures("masks_in_time")


def test_a_poisoned_model_fails_its_sequences_and_not_the_executor(device, tmp_path):
    poison = next(t for t in PLAIN.tensors() if t.name == "output_norm.weight")
    values = np.full(PLAIN.width, np.nan, np.float32)
    file = tiny_file(tmp_path, tensors={poison.name: replace(poison, data=values.tobytes())})
    executor = load_on(device, file, replace(SMALL, allow_nonfinite=True))
    for _ in range(2):
        (failed,) = execute(executor, one_token_plan()).sampled
        assert failed.slot == 0
        assert isinstance(failed.error, NonFiniteLogitsError)
        assert "NaN or infinite after 1 token (" in failed.error.message


def figures_of(failed: object, length: int) -> None:
    """Check that a failure has the figures of a row of `length` NaN, in its message too."""
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteLogitsError)
    finite = {"minimum": None, "maximum": None, "mean": None}
    counts = {"length": length, "nan": length, "inf": 0, "negative_inf": 0, "negative_rows": 0}
    assert failed.error.logits == counts | finite
    assert f" ({length} values: {length} NaN, 0 inf, 0 -inf; none" in failed.error.message


def test_an_error_has_figures_of_the_row_that_failed(device, tmp_path):
    clean = load_on(device, tiny_file(tmp_path), SMALL)
    prompt = [3, 1, 4]
    binding = Binding(0, GREEDY, prompt, [])
    plan = StepPlan((binding,), (Chunk(0, 0, prompt, [0], True),))
    token = execute(clean, plan).sampled[0].token
    poisoned = poisoned_file(tmp_path, token)
    executor = load_on(device, poisoned, replace(SMALL, allow_nonfinite=True))
    bad = Chunk(1, 0, [2, token], [1], True)
    guessed = Chunk(0, 0, [*prompt, token], [0], True, guesses=1, uncertain=1)
    plan = StepPlan((Binding(1, GREEDY, [2, token], []), binding), (bad, guessed))
    first, fine, second = execute(executor, plan).sampled
    figures_of(first, PLAIN.vocabulary)
    assert fine.token == token
    assert "after 4 tokens" in second.error.message
    figures_of(second, PLAIN.vocabulary)


def test_an_error_of_a_prompt_has_figures_of_its_last_row_that_failed(device, tmp_path):
    executor = load_on(device, poisoned_file(tmp_path, 11), replace(SMALL, allow_nonfinite=True))
    scored = Chunk(0, 0, [3, 11, 4], [0], False, Scoring(0, [11, 4], 0))
    long = Chunk(1, 0, PROMPT, page_table(1, len(PROMPT)), False, Scoring(0, PROMPT[1:], 0))
    fine, failed = execute(executor, StepPlan((), (long, scored))).scored
    assert len(fine.scores) == len(PROMPT) - 1
    figures_of(failed, PLAIN.vocabulary)
    bindings = (Binding(1, EmbeddingParams(Pooling.MEAN), [3, 11], []),)
    embedded = Chunk(1, 0, [3, 11], [1], False, pool=Pool(0, complete=True))
    (failed,) = execute(executor, StepPlan(bindings, (embedded,))).pooled
    figures_of(failed, PLAIN.width)
    each = (Binding(1, EmbeddingParams(Pooling.NONE), [11, 11], []),)
    embedded = replace(embedded, tokens=[11, 11])
    (failed,) = execute(executor, StepPlan(each, (embedded,))).pooled
    figures_of(failed, 2 * PLAIN.width)


def test_a_row_that_a_later_one_replaced_has_no_figures(tmp_path):
    """The native program keeps the logits of 32 rows."""
    executor = load_on("cpu", poisoned_file(tmp_path, 11), replace(SMALL, allow_nonfinite=True))
    scored = Chunk(0, 0, [3, 11, 4], [0], False, Scoring(0, [11, 4], 0))
    for after in (31, 32):
        long = Chunk(1, 0, PROMPT, page_table(1, len(PROMPT)), False, Scoring(0, PROMPT[:after], 0))
        failed, _ = execute(executor, StepPlan((), (scored, long))).scored
        if after == 31:
            figures_of(failed, PLAIN.vocabulary)
        else:
            assert failed.error.logits == {}
            assert "infinite after 3 tokens. The model file" in failed.error.message


def test_logits_are_summarised(executor):
    assert executor.logits_summary() is None
    execute(executor, one_token_plan())
    figures = executor.logits_summary()
    assert (figures.length, figures.nan, figures.inf) == (executor.shape.vocabulary, 0, 0)
    assert (figures.negative_inf, figures.negative_rows) == (0, 0)
    assert figures.minimum < figures.mean < figures.maximum


def test_a_summary_counts_what_is_not_finite() -> None:
    nan, inf = math.nan, math.inf
    rows = [[nan, inf, -1], [-inf, 9, 5], [4, -3, 1], [-inf, -2, -1], [nan, -1, -1]]
    figures = summarize(np.array(rows, np.float32))
    assert figures == LogitsSummary(15, 2, 1, 2, 1, -3.0, 9.0, 1.0)
    assert str(figures) == (
        "15 values: 2 NaN, 1 inf, 2 -inf; the finite ones are -3 to 9; rows with only negative"
        " values: 1"
    )
    assert summarize(np.float32([nan] * 3)) == LogitsSummary(3, 3, 0, 0, 0, None, None, None)
