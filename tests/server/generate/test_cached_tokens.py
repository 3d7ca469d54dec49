"""Fields of the prefix cache in requests and in answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

COMPLETION = ("/v1/completions", {"prompt": "the sea is blue"})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the sea is blue"}]})
LENGTHS = {COMPLETION[0]: 15, CHAT[0]: 22}


def ask(server: Running, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    wanted = body | {"max_tokens": 4, "ignore_eos": True, "seed": 1} | fields
    response = server.post(path, wanted)
    assert response.status_code == 200
    if not fields.get("stream"):
        return response.json()
    last = response.text.strip().split("\n\n")[-2]
    return json.loads(last.removeprefix("data: "))


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_every_answer_tells_its_cached_tokens(
    serve: Callable[..., Running], path: str, body: dict[str, Any]
) -> None:
    server = serve()
    length = LENGTHS[path]
    first, again = (ask(server, path, body) for _ in range(2))
    assert (cached(first), cached(again)) == (0, length - 1)
    assert first["choices"] == again["choices"]
    streamed = ask(server, path, body, stream=True, stream_options={"include_usage": True})
    assert cached(streamed) == length - 1


def test_a_prompt_of_several_choices_is_cached_if_no_choice_computed_it(
    serve: Callable[..., Running],
) -> None:
    server = serve()
    assert cached(ask(server, *COMPLETION, n=3)) == 0
    assert cached(ask(server, *COMPLETION, n=3)) == 14


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_a_salt_scopes_what_is_found(
    serve: Callable[..., Running], path: str, body: dict[str, Any]
) -> None:
    server = serve()
    salts = ["one", "other", None, "one", None]
    length = LENGTHS[path]
    assert [cached(ask(server, path, body, cache_salt=salt)) for salt in salts] == [
        0,
        0,
        0,
        length - 1,
        length - 1,
    ]


@pytest.mark.parametrize("salt", ["", "x" * 257, 7])
def test_an_odd_salt_is_refused_by_name(shared: Running, salt: Any) -> None:
    response = shared.post("/v1/completions", {"prompt": "hello", "cache_salt": salt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_salt"
