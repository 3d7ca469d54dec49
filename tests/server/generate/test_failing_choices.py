"""Answers of several choices if one choice fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from heddle.outputs import FinishReason
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fake_server import Running

BODY = {"prompt": "hello", "n": 3, "seed": 1, "max_tokens": 400, "ignore_eos": True}


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_an_error_has_figures_of_logits(serve: Callable[..., Running], path: str) -> None:
    server = serve()
    server.executor.poisonous = lambda history: True
    figures: dict[str, float | None] = {"length": 3, "nan": 2, "minimum": None}
    server.executor.figures = figures
    response = server.post(path, {"prompt": "hello"})
    assert response.status_code == 500
    assert response.json()["error"]["logits"] == figures


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_fails_ends_the_answer_at_once(
    serve: Callable[..., Running], *, stream: bool
) -> None:
    """The others would go on: steps are held from the failure until the answer is there."""
    server = serve(slots=3)
    failed: list[Sequence[int]] = []

    def poisonous(history: Sequence[int]) -> bool:
        if len(history) != 9 or failed:
            return False
        failed.append(history)
        return True

    def before_step(step: int) -> None:
        if failed:  # this step has delivered the failure, and the next one waits
            server.executor.gate.clear()

    server.executor.poisonous = poisonous
    server.executor.before_step = before_step
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", BODY | {"stream": stream})
        try:
            response = answer.result(PATIENCE)
            assert server.executor.steps < 20
        finally:
            server.executor.before_step = lambda step: None
            server.executor.gate.set()
    assert response.status_code == (200 if stream else 500)
    assert '"code":"non_finite_logits"' in response.text
    server.until(server.idle)
    finished = server.engine.snapshot().finished
    assert finished[FinishReason.ERROR] == 1
    assert finished[FinishReason.CANCELLED] == 2
