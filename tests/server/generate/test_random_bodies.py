"""Whatever is sent, the answer is an answer or a refusal in OpenAI's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.server.api.openai.response_schemas import ResponsesRequest
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_server import Running

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
SENSIBLE = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(0, 50),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "typical_p": st.floats(0.1, 1),
    "dry_multiplier": st.floats(0, 2),
    "dry_sequence_breakers": st.lists(st.text(min_size=1, max_size=5), max_size=3),
    "mirostat": st.sampled_from([0, 2]),
    "samplers": st.lists(st.sampled_from(["penalties", "top_k", "typ_p", "xtc"]), unique=True),
    "bad_words": st.lists(st.text("abc ", min_size=1).filter(str.strip), max_size=3),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "stop": st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 31), max_size=3),
    "logit_bias": st.dictionaries(st.integers(0, 31).map(str), st.floats(-100, 100), max_size=3),
    "n": st.integers(1, 4),
    "stream": st.booleans(),
    "ignore_eos": st.booleans(),
    "user": st.text(),
}
PROMPTS = (
    st.text(min_size=1)
    | st.lists(st.integers(0, 31), min_size=1)
    | st.lists(st.text(min_size=1), min_size=1, max_size=3)
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text()}
    ),
    min_size=1,
    max_size=3,
)
CHAT = {"messages": MESSAGES, "logprobs": st.booleans(), "max_completion_tokens": st.integers(1, 9)}
RESPONSE = {
    "input": st.text(min_size=1) | MESSAGES,
    "instructions": st.text(),
    "include": st.just(["message.output_text.logprobs"]),
    "top_logprobs": st.integers(0, 20),
    "max_output_tokens": st.integers(1, 9),
}
COMPLETION = {"prompt": PROMPTS, "logprobs": st.integers(0, 20), "max_tokens": st.integers(1, 9)}


def bodies(schema: type[Any], required: str, own: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Bodies that are right but for at most two fields, which are known ones or not."""
    known = SENSIBLE | own
    right = st.fixed_dictionaries(
        {required: known[required]},
        optional={name: value for name, value in known.items() if name != required},
    )
    names = st.sampled_from(sorted(schema.model_fields)) | st.text(max_size=5)
    wrong = st.dictionaries(names, ANYTHING, max_size=2)
    return st.builds(lambda first, second: first | second, right, wrong)


@pytest.fixture(scope="module")
def client(shared: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared.url, timeout=PATIENCE) as client:
        yield client


def check(client: httpx.Client, path: str, body: bytes) -> None:
    """Send `body`; the answer must be whole or a refusal."""
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    if response.status_code == 200 and response.headers["content-type"] == "application/json":
        answer = response.json()
        if path == "/v1/responses":
            assert answer["status"] in ("completed", "incomplete")
        else:
            assert all(choice["finish_reason"] for choice in answer["choices"])
    elif response.status_code == 200 and path == "/v1/responses":
        last = response.text.removesuffix("\n\n").rpartition("\n\n")[-1]
        assert last.startswith(("event: response.completed\n", "event: response.incomplete\n"))
    elif response.status_code == 200:
        assert response.text.endswith("\n\ndata: [DONE]\n\n")
        assert '"error"' not in response.text
    else:
        assert response.status_code in (400, 404), response.text
        error = response.json()["error"]
        is_long = error["type"] == "exceed_context_size_error"
        sizes = {"n_prompt_tokens", "n_ctx"} if is_long else set()
        assert set(error) == {"message", "type", "param", "code"} | sizes
        assert is_long or error["type"] == "invalid_request_error"
        assert error["message"]


quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(body=bodies(ChatRequest, "messages", CHAT))
def test_chat_completions(client: httpx.Client, body: Any) -> None:
    check(client, "/v1/chat/completions", json.dumps(body).encode())


@quick
@given(body=bodies(CompletionRequest, "prompt", COMPLETION))
def test_completions(client: httpx.Client, body: Any) -> None:
    check(client, "/v1/completions", json.dumps(body).encode())


@quick
@given(body=bodies(ResponsesRequest, "input", RESPONSE))
def test_responses(client: httpx.Client, body: Any) -> None:
    check(client, "/v1/responses", json.dumps(body).encode())


@quick
@given(body=st.binary() | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_bodies_that_are_anything(client: httpx.Client, body: bytes) -> None:
    check(client, "/v1/completions", body)
