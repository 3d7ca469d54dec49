"""`/embedding` in llama.cpp's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_model import FakeTokenizer
from heddle.embedding import EmbeddingParams

if TYPE_CHECKING:
    from fake_server import Running


def vector_of(server: Running, text: str) -> Any:
    answer = server.post("/v1/embeddings", {"input": text}).json()
    return answer["data"][0]["embedding"]


@pytest.mark.parametrize("field", ["content", "input"])
@pytest.mark.parametrize("prompt", ["ab", [1, 2], [1, "b"], {"prompt_string": "ab"}, ["ab"]])
def test_one_text(shared: Running, field: str, prompt: Any) -> None:
    answer = shared.post("/embedding", {field: prompt}).json()
    assert answer == [{"index": 0, "embedding": [vector_of(shared, "ab")]}]


def test_several_texts(shared: Running) -> None:
    tokens = FakeTokenizer().encode("hello")
    answer = shared.post("/v1/embedding", {"content": ["ab", "hello", tokens]}).json()
    assert [one["index"] for one in answer] == [0, 1, 2]
    vectors = [vector_of(shared, text) for text in ("ab", "hello", "hello")]
    assert [one["embedding"] for one in answer] == [[vector] for vector in vectors]


@pytest.mark.parametrize(("fields", "unit"), [({}, True), ({"embd_normalize": -1}, False)])
def test_lengths(shared: Running, fields: dict[str, Any], unit: bool) -> None:
    assert shared.post("/embedding", {"content": "length"} | fields).status_code == 200
    asked = FakeTokenizer().encode("length")
    lengths = [
        occupant.params.unit_length
        for occupant in shared.executor.slots.values()
        if isinstance(occupant.params, EmbeddingParams) and occupant.history == asked
    ]
    assert unit in lengths


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "content"),
        ({"content": "a", "input": "a"}, "content"),
        ({"content": ""}, "content"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [99]}, "input"),
        ({"content": "a" * 600}, "content"),
        ({"content": "a", "embd_normalize": 0}, "embd_normalize"),
        ({"content": "a", "dimensions": 3}, "dimensions"),
    ],
)
def test_what_is_refused(shared: Running, body: dict[str, Any], param: str) -> None:
    answer = shared.post("/embedding", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
