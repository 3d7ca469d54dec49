"""Fields that cannot make an answer wrong: accepted, without effect, and named in a header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from heddle.server.http.hints import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

ASKED: list[Any] = [{"role": "user", "content": "hello"}]
SEEDED = {"seed": 1, "ignore_eos": True}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": ASKED, "max_tokens": 4} | SEEDED,
    "/v1/completions": {"prompt": "hello", "max_tokens": 4} | SEEDED,
    "/v1/responses": {"input": "hello", "max_output_tokens": 4} | SEEDED,
    "/v1/messages": {"model": "fake", "messages": ASKED, "max_tokens": 4} | SEEDED,
}
LABELS = {
    "user": "me",
    "safety_identifier": "me",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "priority",
    "store": True,
}
LLAMA = {
    "cache_prompt": False,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 2500,
    "n_indent": 4,
    "timings_per_token": True,
}
CHAT_HINTS = {
    "reasoning_effort": "low",
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "thinking_token_budget": 2048,
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "response_fields": [""],
}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CASES = [
    ("/v1/chat/completions", LABELS | {"metadata": {"a": "b"}, "verbosity": "low"}, None),
    pytest.param(
        "/v1/chat/completions",
        LABELS | LLAMA | CHAT_HINTS | {"metadata": {"a": "b"}},
        None,
        marks=pytest.mark.extensions,
    ),
    pytest.param(
        "/v1/completions",
        LABELS | LLAMA | {"metadata": {"a": "b"}},
        None,
        marks=pytest.mark.extensions,
    ),
    pytest.param(
        "/v1/responses",
        LABELS | LLAMA | {"context_management": [{"type": "compaction"}]},
        None,
        marks=pytest.mark.extensions,
    ),
    ("/v1/responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
    ("/v1/responses", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ("/v1/responses", {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ("/v1/responses", {"include": ["reasoning.encrypted_content"]}, "include"),
    (
        "/v1/messages",
        {
            "metadata": {"user_id": "me"},
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "context_management": {"edits": []},
        },
        None,
    ),
    ("/v1/messages", {"output_config": {"effort": "low"}}, "output_config.effort"),
    (
        "/v1/messages",
        {
            "tool_choice": {"type": "none"},
            "tools": [
                TOOL | {"eager_input_streaming": True},
                TOOL | {"name": "g", "defer_loading": True, "eager_input_streaming": True},
            ],
        },
        "tools.eager_input_streaming, tools.defer_loading",
    ),
]


def content(answer: Any) -> Any:
    """The text of the model in an answer of any shape."""
    body = answer.json()
    parts = body.get("choices") or body.get("output") or body["content"]
    for one in parts:
        one.pop("id", None)
    return parts


@pytest.mark.parametrize(("path", "fields", "named"), CASES)
def test_hints_are_accepted_and_named(
    shared: Running, path: str, fields: dict[str, Any], named: str | None
) -> None:
    plain, hinted = (shared.post(path, BODIES[path] | more) for more in ({}, fields))
    assert (hinted.status_code, HEADER in plain.headers) == (200, False)
    told = hinted.headers[HEADER].split(", ")
    assert sorted(told) == sorted(fields if named is None else named.split(", "))
    assert content(hinted) == content(plain)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {"store": False, "service_tier": "auto", "verbosity": "medium", "user": None},
        ),
        pytest.param(
            "/v1/completions",
            {"cache_prompt": True, "id_slot": -1, "timings_per_token": False},
            marks=pytest.mark.extensions,
        ),
        pytest.param(
            "/v1/completions",
            {"t_max_prompt_ms": -1, "t_max_predict_ms": 0.0},
            marks=pytest.mark.extensions,
        ),
        ("/v1/responses", {"include": ["message.output_text.logprobs"], "metadata": {"a": "b"}}),
        ("/v1/messages", {"service_tier": "auto", "thinking": {"type": "disabled"}}),
    ],
)
def test_what_is_done_anyway_is_not_named(
    shared: Running, path: str, fields: dict[str, Any]
) -> None:
    answer = shared.post(path, BODIES[path] | fields)
    assert (answer.status_code, HEADER in answer.headers) == (200, False)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"id_slot": "first"}, "id_slot"),
        ("/v1/responses", {"include": ["everything"]}, "include[0]"),
        ("/v1/chat/completions", {"service_tier": "fastest"}, "service_tier"),
    ],
)
def test_a_hint_has_its_type(
    shared: Running, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = shared.post(path, BODIES[path] | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_stream_has_the_header(shared: Running) -> None:
    chat = BODIES["/v1/chat/completions"] | {"stream": True, "reasoning_effort": "high"}
    assert shared.post("/v1/chat/completions", chat).headers[HEADER] == "reasoning_effort"


@pytest.mark.extensions
def test_a_count_has_the_header(shared: Running) -> None:
    count = {"model": "fake", "messages": ASKED, "thinking": {"type": "adaptive"}}
    assert shared.post("/v1/messages/count_tokens", count).headers[HEADER] == "thinking"


def test_openai_s_client_sees_it(shared: Running) -> None:
    raw = shared.openai.chat.completions.with_raw_response.create(
        model="fake", messages=ASKED, max_tokens=2, reasoning_effort="low", verbosity="low"
    )
    assert sorted(raw.headers[HEADER].split(", ")) == ["reasoning_effort", "verbosity"]


@pytest.mark.extensions
def test_anthropic_s_client_sees_it(shared: Running) -> None:
    with anthropic.Anthropic(base_url=shared.url, api_key="none", max_retries=0) as client:
        message = client.messages.with_raw_response.create(
            model="fake",
            messages=ASKED,
            max_tokens=2,
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
    assert message.headers[HEADER] == "thinking"


def test_a_page_may_read_it(serve: Callable[..., Running]) -> None:
    server = serve(cors=("*",))
    answer = server.get("/v1/models", headers={"origin": "https://page.example"})
    assert HEADER in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_minus_one_is_no_limit(shared: Running, name: str) -> None:
    body = {"messages": ASKED, "seed": 3}
    free, unlimited = (
        shared.post("/v1/chat/completions", body | more) for more in ({}, {name: -1})
    )
    assert content(unlimited) == content(free)


def test_minus_one_is_no_limit_of_a_completion(shared: Running) -> None:
    body = {"prompt": "hello", "seed": 1, "ignore_eos": True, "max_tokens": -1}
    assert shared.post("/v1/completions", body).json()["usage"]["total_tokens"] == 512


def test_what_refers_to_stored_answers_stays_refused(shared: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        shared.openai.responses.create(model="fake", input="a", previous_response_id="resp_1")
