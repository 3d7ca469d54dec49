"""`/embedding` in llama.cpp's shape."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import embedding
from fake_model import FakeTokenizer
from heddle.embedding import EmbeddingParams
from heddle.server.generate import vectors

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

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


@pytest.mark.parametrize("path", ["/embedding", "/v1/embedding", "/embeddings"])
def test_without_pooling_each_token_has_a_vector(serve: Callable[..., Running], path: str) -> None:
    server = serve(pooling="none")
    of_tokens = [embedding([token]).tolist() for token in FakeTokenizer().encode("hello")]
    answer = server.post(path, {"input": ["hello", [2]]}).json()
    assert answer == [
        {"index": 0, "embedding": of_tokens},
        {"index": 1, "embedding": [embedding([2]).tolist()]},
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "hello"}),
        ("/api/embed", {"model": "fake", "input": "hello"}),
        ("/api/embeddings", {"model": "fake", "prompt": "hello"}),
    ],
)
def test_a_route_with_a_vector_for_each_text_refuses_those_of_tokens(
    serve: Callable[..., Running], path: str, body: dict[str, Any]
) -> None:
    answer = serve(pooling="none").post(path, body)
    assert answer.status_code == 400
    assert "Set pooling to mean, cls or last" in answer.text


def test_a_request_may_pool_where_the_setting_does_not(serve: Callable[..., Running]) -> None:
    server = serve(pooling="none")
    for path in ("/v1/embeddings", "/embeddings"):
        [entry] = server.post(path, {"input": [1, 2], "pooling": "mean"}).json()["data"]
        assert entry["embedding"] == embedding([1, 2]).tolist()


def test_a_thread_encodes_many_numbers(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop serves others meanwhile."""
    threads = []

    def entry(index: int, vector: array[float], **sizes: Any) -> bytes:
        threads.append(threading.current_thread())
        return vectors.entry_of_tokens(index, vector, **sizes)

    monkeypatch.setattr("heddle.extensions.llamacpp.embedding.entry_of_tokens", entry)
    monkeypatch.setattr(vectors, "_LARGE", 4)
    server = serve(pooling="none")
    assert server.post("/embedding", {"input": [[1], [1, 2]]}).status_code == 200
    assert [thread is server.thread for thread in threads] == [True, False]
