"""The sampling parameters that a model's files recommend hold where a body does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

MESSAGES = [{"role": "user", "content": "hello"}]

BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": "hello", "max_tokens": 1},
    "/v1/responses": {"input": "hello", "max_output_tokens": 1},
    "/v1/messages": {"model": "fake", "messages": MESSAGES, "max_tokens": 1},
}

DEFAULTS = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}


@pytest.fixture
def running(serve: Callable[..., Running]) -> Running:
    return serve(defaults=DEFAULTS)


def sampled_with(running: Running, path: str, **fields: Any) -> SamplingParams:
    """The parameters that the executor got for a request."""
    response = running.post(path, BODIES[path] | fields)
    assert response.status_code == 200, response.text
    [occupant] = running.executor.slots.values()
    assert isinstance(occupant.params, SamplingParams)
    return occupant.params


@pytest.mark.parametrize("path", BODIES)
def test_a_request_overrides_what_it_says_and_no_more(running: Running, path: str) -> None:
    params = sampled_with(running, path)
    assert (params.temperature, params.top_k, params.repetition_penalty) == (0.6, 20, 1.05)
    params = sampled_with(running, path, temperature=1.0, top_k=0)
    assert (params.temperature, params.top_k, params.repetition_penalty) == (1.0, 0, 1.05)
    params = sampled_with(running, path, temperature=None)
    assert params.temperature == 0.6


@pytest.mark.parametrize("path", BODIES)
def test_defaults_of_the_server_come_before_those_of_the_model(
    serve: Callable[..., Running], path: str
) -> None:
    server = serve(defaults=DEFAULTS, sampling={"top_k": 5, "min_p": 0.25})
    params = sampled_with(server, path)
    assert (params.temperature, params.top_k, params.min_p) == (0.6, 5, 0.25)
    assert sampled_with(server, path, top_k=7).top_k == 7


@pytest.mark.parametrize(("most", "limit"), [(3, 3), (-1, None)])
def test_the_server_may_limit_tokens_by_default(
    serve: Callable[..., Running], most: int, limit: int | None
) -> None:
    server = serve(sampling={"max_tokens": most, "seed": 3})
    for path, body in BODIES.items():
        if path != "/v1/messages":  # there the field is required
            free = {name: value for name, value in body.items() if not name.startswith("max_")}
            assert server.post(path, free).status_code == 200
            [occupant] = server.executor.slots.values()
            assert (occupant.params.max_tokens, occupant.params.seed) == (limit, 3)


def test_a_response_repeats_the_temperature_that_held(running: Running) -> None:
    response = running.post("/v1/responses", BODIES["/v1/responses"])
    assert response.json()["temperature"] == 0.6


def test_the_library_uses_them_without_params(running: Running) -> None:
    llm = LLM(running.engine)
    shown = running.executor.slots
    llm.generate("a")
    assert [one.params.top_k for one in shown.values()] == [20]  # type: ignore[union-attr]
    llm.generate("a", SamplingParams(max_tokens=1))
    assert [one.params.top_k for one in shown.values()] == [0]  # type: ignore[union-attr]
    assert llm.sampling_params(max_tokens=1) == SamplingParams(max_tokens=1, **DEFAULTS)  # type: ignore[arg-type]
    running.engine.complete("a")
    assert [one.params.top_k for one in shown.values()] == [20]  # type: ignore[union-attr]
