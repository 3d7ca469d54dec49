"""Which names of the model requests may use: `--alias` and `--any-model`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from heddle.config import MAX_MODEL_NAME, ServerConfig
from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

ASKED = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": ASKED, "max_tokens": 2},
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": ASKED, "max_tokens": 2},
    "/v1/embeddings": {"input": "hello"},
}


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_has_the_name_that_was_asked_for(
    serve: Callable[..., Running], path: str
) -> None:
    server = serve(alias=("gpt-4o", "claude-opus-4"))
    for name in ("fake", "gpt-4o", "claude-opus-4"):
        answer = server.post(path, BODIES[path] | {"model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, name)
    refused = server.post(path, BODIES[path] | {"model": "gpt-5"})
    assert refused.status_code == 404
    assert "'fake', 'gpt-4o', 'claude-opus-4'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", [*BODIES, "/v1/messages/count_tokens"])
def test_a_request_without_a_name_is_for_the_default_model(shared: Running, path: str) -> None:
    body = BODIES.get(path, {"messages": ASKED})
    answer = shared.post(path, body)
    assert (answer.status_code, answer.json().get("model", "fake")) == (200, "fake")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_so_have_the_events_of_a_stream(serve: Callable[..., Running], path: str) -> None:
    server = serve(any_model=True)
    answer = server.post(path, BODIES[path] | {"model": "GPT-4", "stream": True})
    *events, done = answer.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert {json.loads(one.removeprefix("data: "))["model"] for one in events} == {"GPT-4"}


def test_a_model_is_one_entry_with_its_aliases_and_tags(serve: Callable[..., Running]) -> None:
    server = serve(alias=("gpt-4o", "fake"), tags=("chat", "small"))
    [listed] = server.get("/v1/models").json()["data"]
    assert (listed["id"], listed["aliases"]) == ("fake", ["gpt-4o", "fake"])
    assert listed["tags"] == ["chat", "small"]
    assert server.openai.models.retrieve("gpt-4o").id == "gpt-4o"
    assert server.get("/v1/models/gpt-5").status_code == 404
    post = server.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["model"]["enum"] == ["fake", "gpt-4o", "", None]


def test_any_model(serve: Callable[..., Running]) -> None:
    server = serve(any_model=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
        assert other.embeddings.create(model="any", input="hello").model == "any"
    too_long = {"model": "x" * (MAX_MODEL_NAME + 1), "prompt": "hello"}
    assert server.post("/v1/completions", too_long).status_code == 404


@pytest.mark.extensions
def test_any_model_of_anthropic_s_api(serve: Callable[..., Running]) -> None:
    server = serve(any_model=True)
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(model="claude-x", max_tokens=2, messages=ASKED)  # type: ignore[arg-type]
        assert message.model == "claude-x"


def test_no_name_and_an_empty_one_mean_the_loaded_model(shared: Running) -> None:
    for name in ({}, {"model": None}, {"model": ""}):
        answer = shared.post("/v1/completions", BODIES["/v1/completions"] | name)
        assert answer.json()["model"] == "fake"


def test_an_alias_is_not_empty() -> None:
    with pytest.raises(ConfigError, match="alias must be a name of 1 to 256 characters, got"):
        ServerConfig(alias=("a", ""))
