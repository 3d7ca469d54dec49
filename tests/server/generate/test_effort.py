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
