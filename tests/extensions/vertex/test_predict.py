"""Vertex AI's `/predict`: bodies of `/v1/chat/completions` in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running


def instance(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    fields = {"seed": 1, "max_tokens": 4, "ignore_eos": True} | fields
    return {"@requestFormat": "chatCompletions", "messages": messages} | fields


def chosen(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_predictions_are_answers_of_chats_in_order(shared: Running) -> None:
    asked = [instance("a"), instance("bb", max_tokens=9), instance("c", n=2)]
    answer = shared.post("/predict", {"instances": asked})
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    alone = [
        shared.post("/v1/chat/completions", {k: v for k, v in one.items() if k[0] != "@"}).json()
        for one in asked
    ]
    assert [*map(chosen, predictions)] == [*map(chosen, alone)]
    assert [one["usage"]["completion_tokens"] for one in predictions] == [4, 9, 8]


@pytest.mark.parametrize(
    ("instances", "param"),
    [
        ([], "instances"),
        ([{"messages": [{"role": "user", "content": "a"}]}], "instances[0].@requestFormat"),
        ([instance("a"), instance("a", **{"@requestFormat": "x"})], "instances[1].@requestFormat"),
        ([instance("a", stream=True)], "instances[0].stream"),
        ([instance("a", colour=1)], "instances[0].colour"),
        ([instance("a", temperature=-1)], "temperature"),
        ([instance("a")] * 257, "instances"),
    ],
)
def test_what_is_refused(shared: Running, instances: list[Any], param: str) -> None:
    answer = shared.post("/predict", {"instances": instances})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_more_instances_than_places_are_refused(serve: Callable[..., Running]) -> None:
    server = serve(slots=2, queue=1)
    answer = server.post("/predict", {"instances": [instance("a")] * 4})
    assert answer.status_code == 400
    assert "slots and queue hold 3" in answer.json()["error"]["message"]


def test_an_instance_that_fails_ends_the_others(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.poisonous = lambda history: 31 in history
    fails = instance("a", logit_bias={"31": 100}, temperature=0)
    asked = [instance("a", max_tokens=400, logit_bias={"31": -100}), fails]
    answer = server.post("/predict", {"instances": asked})
    assert answer.status_code == 500
    server.until(server.idle)


def test_predictions_that_wait_for_the_last_one_are_bounded(serve: Callable[..., Running]) -> None:
    """One after another: none alone is above the bound."""
    server = serve(slots=1, backlog=64 * 1024)
    asked = instance("a", max_tokens=100, logprobs=True, top_logprobs=1)
    assert server.post("/predict", {"instances": [asked]}).status_code == 200
    answer = server.post("/predict", {"instances": [asked] * 16})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backlog_full")
