"""Fields that say how long to reason: told to a template that asks for it, else hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import templates
from heddle.server.http.hints import HEADER
from talking_model import talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from talking_model import Talking

ASKED = [{"role": "user", "content": "hello"}]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASKED, "reasoning_effort": "high"}),
    ("/v1/chat/completions", {"messages": ASKED, "reasoning": {"effort": "high"}}),
    ("/v1/responses", {"input": "hello", "reasoning": {"effort": "high"}}),
    (
        "/v1/messages",
        {
            "model": "fake",
            "max_tokens": 9,
            "messages": ASKED,
            "output_config": {"effort": "high"},
        },
    ),
]


@pytest.fixture(scope="module")
def asking() -> Iterator[Talking]:
    """A server whose template asks for the effort."""
    with talking_server("Effort: {{ reasoning_effort }}." + templates.CHATML) as server:
        yield server


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_template_that_asks_is_told(asking: Talking, path: str, body: dict[str, Any]) -> None:
    asking.says("Yes.")
    answer = asking.post(path, body)
    assert (answer.status_code, HEADER in answer.headers) == (200, False)
    assert asking.prompt.startswith("Effort: high.")
    if path == "/v1/responses":
        assert answer.json()["reasoning"]["effort"] == "high"


def test_what_is_said_to_the_template_itself_comes_first(asking: Talking) -> None:
    asking.says("Yes.")
    path, body = CASES[0]
    asking.post(path, body | {"chat_template_kwargs": {"reasoning_effort": "low"}})
    assert asking.prompt.startswith("Effort: low.")


SWITCHED = templates.CHATML + "{% if enable_thinking %}thinks{% endif %}{# </think> #}"
OFF: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASKED, "reasoning_effort": "none"}),
    ("/v1/chat/completions", {"messages": ASKED, "thinking": {"type": "disabled"}}),
    ("/v1/chat/completions", {"messages": ASKED, "reasoning": {"effort": "none"}}),
    ("/v1/chat/completions", {"messages": ASKED, "enable_thinking": False}),
    ("/v1/responses", {"input": "hello", "reasoning": {"effort": "none"}}),
    (
        "/v1/messages",
        {
            "model": "fake",
            "max_tokens": 20,
            "messages": ASKED,
            "thinking": {"type": "disabled"},
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), OFF)
def test_reasoning_is_turned_off_by_the_variable_of_the_template(
    path: str, body: dict[str, Any]
) -> None:
    with talking_server(SWITCHED) as server:
        server.says("Yes.")
        answer = server.post(path, body)
        assert (answer.status_code, HEADER in answer.headers) == (200, False)
        assert not server.prompt.endswith("thinks")
        server.post("/v1/chat/completions", {"messages": ASKED, "reasoning_effort": "low"})
        assert server.prompt.endswith("thinks")


@pytest.mark.parametrize(("path", "body"), OFF)
def test_reasoning_is_turned_off_by_a_budget_of_zero(path: str, body: dict[str, Any]) -> None:
    with talking_server(templates.THINKING) as server:
        server.says("Long.</think>Yes.")
        answer = server.post(path, body)
        assert (answer.status_code, HEADER in answer.headers) == (200, False)
        assert "Long" not in answer.text


def test_a_chat_has_the_budget_of_thinking() -> None:
    with talking_server(templates.THINKING) as server:
        server.says("Long and long.</think>Yes.")
        thinking = {"type": "enabled", "budget_tokens": 4}
        answer = server.post("/v1/chat/completions", {"messages": ASKED, "thinking": thinking})
        assert HEADER not in answer.headers
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning_content"] == message["reasoning"] == "Long"


def test_limits_that_differ_are_an_error(asking: Talking) -> None:
    thinking = {"type": "enabled", "budget_tokens": 4}
    body = {"messages": ASKED, "thinking": thinking, "thinking_token_budget": 5}
    answer = asking.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "differ" in answer.json()["error"]["message"]


def test_a_chat_that_turns_reasoning_on_and_off_is_an_error(asking: Talking) -> None:
    body = {"messages": ASKED, "thinking": {"type": "enabled"}, "enable_thinking": False}
    answer = asking.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "enable_thinking (False) and thinking (True) differ" in answer.json()["error"]["message"]


def test_turning_reasoning_on_is_a_hint(asking: Talking) -> None:
    asking.says("Yes.")
    answer = asking.post("/v1/chat/completions", {"messages": ASKED, "enable_thinking": True})
    assert (answer.status_code, answer.headers[HEADER]) == (200, "enable_thinking")
    with talking_server("{% if thinking %}thinks{% endif %}" + templates.THINKING) as server:
        server.says("Yes.")
        answer = server.post("/v1/chat/completions", {"messages": ASKED, "enable_thinking": True})
        assert (answer.status_code, HEADER in answer.headers) == (200, False)
        assert server.prompt.startswith("thinks")


def test_both_names_of_earlier_reasoning_reach_the_template() -> None:
    shows = "{% for m in messages %}{{ m.reasoning_content }};{% endfor %}"
    with talking_server(shows) as server:
        server.says("Yes.")
        earlier = {"role": "assistant", "content": "a"}
        messages = [
            earlier | {"reasoning": "one"},
            earlier | {"reasoning_content": "two"},
            *ASKED,
        ]
        server.post("/v1/chat/completions", {"messages": messages})
        assert server.prompt.startswith("one;two;")
