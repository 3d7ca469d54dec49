"""`timings` of an answer, in llama.cpp's fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from heddle.outputs import Usage
from heddle.server.generate.usage import timings

if TYPE_CHECKING:
    from fake_server import Running

FIELDS = {
    "cache_n",
    "prompt_n",
    "predicted_n",
    "queue_ms",
    *(
        f"{of}_{what}"
        for of in ("prompt", "predicted")
        for what in ("ms", "per_token_ms", "per_second")
    ),
}


def test_tokens_add_up_and_times_are_the_longest() -> None:
    first = Usage(10, 5, 4, prompt_seconds=0.5, completion_seconds=2.0, queue_seconds=0.125)
    second = Usage(10, 3, 8, prompt_seconds=0.25, completion_seconds=1.0, queue_seconds=0.5)
    assert timings([first, second]) == {
        "cache_n": 12,
        "prompt_n": 8,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 62.5,
        "prompt_per_second": 16.0,
        "predicted_n": 8,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 2000 / 6,
        "predicted_per_second": 3.0,
        "queue_ms": 500.0,
    }


def test_of_nothing_all_are_zero() -> None:
    assert set(timings([]).values()) == set(timings([Usage(0, 0)]).values()) == {0}


def test_answers_have_them(shared: Running) -> None:
    body = {"prompt": "some words", "max_tokens": 4, "ignore_eos": True}
    whole = shared.post("/v1/completions", body).json()["timings"]
    assert set(whole) == FIELDS
    assert whole["prompt_n"] + whole["cache_n"] == 10
    assert whole["predicted_n"] == 4
    assert whole["prompt_ms"] > 0 and whole["predicted_ms"] > 0 and whole["queue_ms"] > 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = [
        json.loads(event.removeprefix("data: "))
        for event in shared.post("/v1/completions", body | options).text.split("\n\n")[:-2]
    ]
    assert set(last["timings"]) == FIELDS
    assert all("timings" not in chunk for chunk in chunks)
