"""Every route is found with `/v1` and without, and listed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/embeddings": {"input": "hello"},
    "/messages": {"model": "fake", "messages": MESSAGES, "max_tokens": 1},
    "/messages/count_tokens": {"model": "fake", "messages": MESSAGES},
    "/responses": {"input": "hello", "max_output_tokens": 1},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_taken_at_both_paths(shared: Running, path: str) -> None:
    answers = [shared.post(version + path, BODIES[path]) for version in ("/v1", "")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json().keys() == answers[1].json().keys()


@pytest.mark.parametrize("path", ["/models", "/models/fake", "/health", "/metrics", "/slots"])
def test_what_is_read_is_at_both_paths(shared: Running, path: str) -> None:
    answers = [shared.get(version + path) for version in ("/v1", "")]
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.extensions
def test_completions_without_v1_are_those_of_llama_cpp(shared: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 1, "ignore_eos": True}
    assert "choices" in shared.post("/v1/completions", body).json()
    for path in ("/completions", "/completion", "/v1/completion"):
        assert shared.post(path, body).json()["stop_type"] == "limit"


def test_an_error_has_the_shape_of_the_route_s_vendor(shared: Running) -> None:
    assert shared.post("/completions", {}).json()["error"]["param"] == "prompt"


@pytest.mark.extensions
def test_so_has_one_of_anthropic_s_route(shared: Running) -> None:
    assert shared.post("/messages", {}).json()["type"] == "error"


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1/v1/models", "/v1", "/v1health"])
def test_other_paths_stay_what_they_are(shared: Running, path: str) -> None:
    answer = shared.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET, HEAD"),
        ("/v1/health", "GET, HEAD"),
        ("/prefix_cache", "DELETE, POST"),
        ("/v1/prefix_cache", "DELETE, POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones_at_both_paths(
    shared: Running, path: str, methods: str
) -> None:
    answer = httpx.patch(shared.url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


def test_routes_are_listed_once(shared: Running) -> None:
    paths = shared.get("/openapi.json").json()["paths"].keys()
    assert {"/v1/chat/completions", "/health"} <= paths
    assert paths.isdisjoint({"/chat/completions", "/v1/health"})
    assert shared.get("/v1/openapi.json").json()["paths"].keys() == paths


def test_keys_are_asked_for_at_both_paths(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("sk-1",))
    for path in ("/health", "/v1/health"):
        assert server.get(path).status_code == 200
    for path in ("/models", "/v1/models", "/slots", "/v1/slots", "/v1/health/", "//health"):
        assert server.get(path).status_code == 401, path
    key = {"authorization": "Bearer sk-1"}
    assert server.get("/models", headers=key).status_code == 200
