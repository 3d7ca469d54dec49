"""Admission: requests that the server cannot take now get a typed error before any header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from heddle import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "model": "fake"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", REQUESTS)
def test_little_memory_is_a_503_with_figures(
    shared: Running, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    monkeypatch.setattr(memory, "memory_limits", lambda: {"the available memory": 3 * 10**8})
    monkeypatch.setattr(memory.FreeMemory, "_SECONDS", 0.0)
    body = {**REQUESTS[path], "model": shared.engine.model.info.id, "stream": stream}
    refused = shared.post(path, body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "memory is 0.30 GB; min_free_memory keeps 0.54 GB free" in refused.text
    assert refused.headers["content-type"].startswith("application/json")
    monkeypatch.undo()
    monkeypatch.setattr(memory.FreeMemory, "_SECONDS", 0.0)
    assert shared.post(path, body).status_code == 200


@pytest.mark.parametrize("path", REQUESTS)
def test_a_full_queue_is_a_429_before_the_stream(serve: Callable[..., Running], path: str) -> None:
    running = serve(slots=1, queue=0)
    running.executor.gate.clear()
    body = {**REQUESTS[path], "model": running.engine.model.info.id, "stream": True}
    with httpx.stream("POST", running.url + path, json=body, timeout=60) as first:
        assert first.status_code == 200
        refused = running.post(path, body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "1 requests are running or waiting" in refused.text
        running.executor.gate.set()
        first.read()
