"""Streams before their first token: comments, and the progress of prompts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from fake_server import Running

PROMPT = "a" * 40
COMMENT = ": waiting"
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"prompt": PROMPT},
    "/completion": {"prompt": PROMPT},
}
SHORT = {"stream": True, "max_tokens": 2, "ignore_eos": True}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def until_comment(answer: httpx.Response) -> Iterator[str]:
    """The lines after the first comment."""
    lines = answer.iter_lines()
    assert next(line for line in lines if line == COMMENT)
    return lines


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_waits_has_comments(serve: Callable[..., Running], path: str) -> None:
    server = serve(stream_ping=0.01)
    server.executor.gate.clear()
    with server.stream(path, BODIES[path] | SHORT) as answer:
        lines = until_comment(answer)
        assert next(line for line in lines if line == COMMENT)
        server.executor.gate.set()
        assert sum("data: {" in line for line in lines) >= 2


def test_a_stream_in_the_queue_has_comments_beside_a_stream_that_runs(
    serve: Callable[..., Running],
) -> None:
    server = serve(stream_ping=0.01, slots=1)
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 3 else None
    body = {"prompt": "ab", "n": 2, "seed": 1} | SHORT | {"max_tokens": 8}
    with server.stream("/v1/completions", body) as answer:
        lines = until_comment(answer)
        server.executor.gate.set()
        finished = [one["choices"][0] for one in events(lines) if one["choices"]]
    assert {choice["index"] for choice in finished if choice["finish_reason"]} == {0, 1}


def test_comments_may_be_off(serve: Callable[..., Running]) -> None:
    quiet = serve(stream_ping=0, slots=1)
    assert COMMENT not in quiet.post("/v1/completions", {"prompt": "ab"} | SHORT).text


@pytest.mark.extensions
def test_comments_do_not_come_with_lines(serve: Callable[..., Running]) -> None:
    server = serve(stream_ping=0.001, slots=1)
    server.executor.gate.clear()
    body = {"model": "fake", "prompt": "ab", "options": {"num_predict": 2}}
    with server.stream("/api/generate", body) as answer:
        server.until(lambda: server.engine.snapshot().running == 1)
        server.executor.gate.set()
        assert all(line.startswith("{") for line in answer.iter_lines())


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_shows_the_progress_of_its_prompt(
    serve: Callable[..., Running], path: str
) -> None:
    server = serve(batch_tokens=16)
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 0 else None
    with server.stream(path, BODIES[path] | SHORT | {"return_progress": True}) as answer:
        told = events(answer.iter_lines())
        shown = (one["prompt_progress"] for one in told if "prompt_progress" in one)
        first = next(one for one in shown if one["processed"])
        assert 0 < first["processed"] < first["total"]
        assert (first["cache"], first["queue_ms"] >= 0, first["time_ms"] >= 0) == (0, True, True)
        server.executor.gate.set()
        rest = list(told)
    *_, last = [one["prompt_progress"] for one in rest if "prompt_progress" in one]
    assert last["processed"] == last["total"] == first["total"]
    at = [place for place, one in enumerate(rest) if "prompt_progress" in one]
    assert at == list(range(len(at)))  # all before the first token
    assert len(rest) > len(at)


@pytest.mark.extensions
def test_progress_shows_cached_tokens(serve: Callable[..., Running]) -> None:
    server = serve()
    body = {"prompt": "b" * 200, "return_progress": True} | SHORT
    for cached in (False, True):
        told = [
            one
            for one in events(iter(server.post("/completion", body).text.split("\n")))
            if "prompt_progress" in one
        ]
        first, *_, last = (one["prompt_progress"] for one in told)
        assert first["processed"] == first["cache"]
        assert (last["cache"] > 0, last["processed"]) == (cached, 200)
        start, end = told[0]["timings"], told[-1]["timings"]
        assert (start["prompt_n"], start["prompt_ms"], start["predicted_n"]) == (0, 0, 0)
        assert (end["prompt_n"], end["cache_n"]) == (200 - last["cache"], last["cache"])
        assert end["prompt_ms"] == last["time_ms"] > 0


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_an_answer_that_is_no_stream_has_no_progress(shared: Running, path: str) -> None:
    body = {"prompt": "ab", "max_tokens": 1, "return_progress": True}
    assert "prompt_progress" not in shared.post(path, body).text
    told = shared.post("/v1/responses", {"input": "ab", "return_progress": True})
    assert (told.status_code, told.json()["error"]["param"]) == (400, "return_progress")
