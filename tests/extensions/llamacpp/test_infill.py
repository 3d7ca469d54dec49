"""`/infill` in llama.cpp's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fake_server import Running

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
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "x", "path": "y"}]}, "input_extra[0].path"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
        ({"n": 2, "n_cmpl": 3}, "n_cmpl"),
        ({"n_predict": -2}, "max_tokens"),
        ({"n_predict": 1, "max_tokens": 2}, "n_predict"),
        ({"input_prefix": "x" * 600}, "prompt"),
        ({"foo": 1}, "foo"),
    ],
)
def test_what_is_refused(shared: Running, fields: dict[str, Any], param: str) -> None:
    answer = shared.post("/infill", BODY | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_empty_list_of_response_fields_asks_for_all(shared: Running) -> None:
    plain, empty = (
        shared.post("/infill", BODY | more).json() for more in ({}, {"response_fields": []})
    )
    assert empty.keys() == plain.keys()


def test_choices_of_a_stream_end_one_by_one(shared: Running) -> None:
    answer = shared.post("/infill", BODY | {"n": 2, "stream": True})
    events = [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n")[:-1]]
    assert sorted(event["index"] for event in events if event["stop"]) == [0, 1]
    first = "".join(event["content"] for event in events if event["index"] == 0)
    assert first == filling()


def test_files_come_first_and_the_oldest_are_left_out(shared: Running) -> None:
    files = [{"text": f"file {letter} " * 8, "filename": letter} for letter in "abcdefghijkl"]
    tokenizer = FakeTokenizer()
    tokenizer.fills_in = True
    room = 512 - 8 - len(tokenizer.encode_fill_in("one", "two")) - 1
    fitting = room // len("a " + "file a " * 8)
    assert fitting < len(files)
    answer = shared.post("/infill", BODY | {"input_extra": files})
    assert answer.json()["truncated"] is True
    told = answer.headers["x-heddle-ignored"]
    assert told == f"input_extra (first {len(files) - fitting})"
    kept = files[len(files) - fitting :]
    prompt = tokenizer.encode("".join(f"{one['filename']} {one['text']}" for one in kept) + ".")
    prompt += tokenizer.encode_fill_in("one", "two")
    params = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    assert answer.json()["content"] == text_of(solo_output(prompt, params, 512))


def test_a_file_without_a_name_is_numbered(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[tuple[str, str]] = []

    def encode_files(_: object, files: list[tuple[str, str]]) -> list[list[int]]:
        named.extend(files)
        return [[], *([] for _ in files), []]

    monkeypatch.setattr(FakeTokenizer, "encode_files", encode_files)
    files = [{"text": "x"}, {"text": "y", "filename": "b"}, {"text": "z", "filename": ""}]
    assert shared.post("/infill", BODY | {"input_extra": files}).status_code == 200
    assert named == [("snippet1", "x"), ("b", "y"), ("snippet3", "z")]


@pytest.mark.parametrize(("beyond", "left_out"), [(0, False), (1, True)])
def test_a_file_is_kept_if_it_fits_exactly_beside_the_output(
    shared: Running, beyond: int, left_out: bool
) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.fills_in = True
    prompt = tokenizer.encode_fill_in("one", "two")
    head, empty, tail = tokenizer.encode_files([("a", "")])
    output = 8
    room = shared.engine.context - output - len(prompt) - len(head) - len(tail) - len(empty)
    file = {"text": "x" * (room + beyond), "filename": "a"}
    answer = shared.post("/infill", BODY | {"n_predict": output, "input_extra": [file]}).json()
    assert (answer["truncated"], answer["tokens_predicted"]) == (left_out, output)
    whole = shared.engine.context - output
    assert answer["tokens_evaluated"] == (len(prompt) if left_out else whole)


def test_a_model_without_the_tokens_says_so(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTokenizer, "fills_in", False)
    answer = shared.post("/infill", BODY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_suffix")
    assert "fake has no fill-in-the-middle tokens" in answer.json()["error"]["message"]
