"""`/infill` in llama.cpp's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from conftest import Running

BODY = {"input_prefix": "one", "input_suffix": "two", "seed": 1, "ignore_eos": True, "n_predict": 8}


@pytest.fixture(autouse=True)
def model_that_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTokenizer, "fills_in", True)


def filling(begun: str = "") -> str:
    tokenizer = FakeTokenizer()
    tokenizer.fills_in = True
    prompt = tokenizer.encode_fill_in("one", "two") + tokenizer.encode(begun)
    params = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    return text_of(solo_output(prompt, params, 512))


def test_what_belongs_between(shared: Running) -> None:
    answer = shared.post("/infill", BODY).json()
    assert answer["content"] == filling()
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (8, 9)
    assert answer["timings"]["predicted_n"] == 8
    assert shared.post("/infill", BODY | {"prompt": "ab"}).json()["content"] == filling("ab")


def test_a_stream(shared: Running) -> None:
    text = filling()
    answer = shared.post("/infill", BODY | {"stream": True, "stop": text[3:5]})
    events = [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n")[:-1]]
    *pieces, last = events
    assert "".join(piece["content"] for piece in pieces) == text[:3]
    assert not any(piece["stop"] for piece in pieces)
    assert (last["content"], last["stop_type"], last["stopping_word"]) == ("", "word", text[3:5])


def test_without_a_limit_it_ends_by_itself(shared: Running) -> None:
    body = BODY | {"n_predict": -1, "ignore_eos": False, "seed": 3}
    assert shared.post("/infill", body).json()["stop_type"] == "eos"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_suffix": None}, "input_suffix"),
        ({"input_extra": [{"text": "x"}]}, "input_extra"),
        ({"n": 2}, "n"),
        ({"n_predict": -2}, "max_tokens"),
        ({"n_predict": 1, "max_tokens": 2}, "n_predict"),
        ({"input_prefix": "x" * 600}, "prompt"),
        ({"foo": 1}, "foo"),
    ],
)
def test_what_is_refused(shared: Running, fields: dict[str, Any], param: str) -> None:
    answer = shared.post("/infill", BODY | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_model_without_the_tokens_says_so(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTokenizer, "fills_in", False)
    answer = shared.post("/infill", BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
