"""`/v1/embeddings` as the official client sees it, over a socket."""

from __future__ import annotations

import base64
import json
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import embedding
from fake_model import FakeTokenizer
from heddle.engine.streaming.streams import Backlog
from heddle.errors import OverloadedError
from heddle.server.generate.vectors import Gathering

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

HELLO = FakeTokenizer().encode("hello")


def ask(server: Running, given: Any, **fields: Any) -> Any:
    return server.openai.embeddings.create(model="fake", input=given, **fields)


@pytest.mark.parametrize("given", ["hello", HELLO, ["hello"], [HELLO]])
@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
def test_an_input_may_be_text_or_tokens(
    shared: Running, given: Any, encoding_format: str | None
) -> None:
    """Without a word about it, the client asks for base64 and decodes it."""
    fields = {} if encoding_format is None else {"encoding_format": encoding_format}
    answer = ask(shared, given, **fields)
    [item] = answer.data
    found = item.embedding
    if encoding_format == "base64":
        raw = base64.b64decode(found)
        found = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    assert found == embedding(HELLO).tolist()
    assert (answer.object, item.object, item.index) == ("list", "embedding", 0)
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("fake", 5, 5)


@pytest.mark.parametrize(
    "given",
    [
        ["hello", HELLO],
        [HELLO, [HELLO[0], "ello"]],
        [["hell", HELLO[-1]], {"prompt_string": "hello"}],
        [{"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}, "hello"],
    ],
)
def test_inputs_may_be_of_several_kinds(shared: Running, given: list[Any]) -> None:
    answer = shared.post("/v1/embeddings", {"input": given}).json()
    assert [one["embedding"] for one in answer["data"]] == [embedding(HELLO).tolist()] * 2
    assert answer["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize(
    "given",
    [
        {"content": "hello"},
        {"content": []},
        {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"content": [{"type": "text", "text": "a"}], "prompt_string": "a"},
        {},
        [[1, None]],
        [[1, True]],
        [],
    ],
)
def test_inputs_of_no_known_kind_are_refused(shared: Running, given: Any) -> None:
    refused = shared.post("/v1/embeddings", {"input": given})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("input")


@pytest.mark.parametrize(("pooling", "pooled"), [("mean", HELLO), ("last", HELLO[-1:])])
def test_a_request_may_choose_what_is_pooled(
    shared: Running, pooling: str, pooled: list[int]
) -> None:
    [item] = ask(shared, "hello", extra_body={"pooling": pooling}).data
    assert item.embedding == embedding(pooled).tolist()


def test_a_server_may_be_told_what_is_pooled(serve: Callable[..., Running]) -> None:
    [item] = ask(serve(pooling="last"), "hello").data
    assert item.embedding == embedding(HELLO[-1:]).tolist()


def test_more_texts_than_the_queue_has_places(serve: Callable[..., Running]) -> None:
    server = serve(slots=2, queue=3)
    texts = ["a" * (1 + 7 * i % 13) for i in range(50)]
    answer = ask(server, texts)
    assert [item.index for item in answer.data] == list(range(50))
    expected = [embedding(FakeTokenizer().encode(text)).tolist() for text in texts]
    assert [item.embedding for item in answer.data] == expected
    assert answer.usage.prompt_tokens == sum(map(len, texts))


def test_what_comes_after_waits_for_places(serve: Callable[..., Running], monkeypatch: Any) -> None:
    """The server keeps the results of a body's first texts while others come in between."""
    server, asked = serve(slots=2, queue=3), 0
    original = server.engine.generate_many

    def crowded(requests: Any, backlog: Backlog, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked in (2, 3, 5):
            raise OverloadedError("slots and queue are full")
        return original(requests, backlog, **more)

    monkeypatch.setattr(server.engine, "generate_many", crowded)
    answer = ask(server, ["hello"] * 15)
    assert [item.embedding for item in answer.data] == [embedding(HELLO).tolist()] * 15
    assert asked == 6


def test_what_comes_out_of_order_is_answered_in_order() -> None:
    gathering = Gathering(Backlog(100))
    for index in (2, 0, 1):
        gathering.add(index, b"%d" % index)
    assert gathering.held == 3
    assert gathering.take() == [b"0", b"1", b"2"]
    assert gathering.held == 0


def test_beside_a_stream(shared: Running) -> None:
    body = {"prompt": "hello", "seed": 1, "max_tokens": 200, "ignore_eos": True}
    alone = shared.post("/v1/completions", body).json()["choices"][0]["text"]
    parts = []
    for chunk in shared.openai.completions.create(model="fake", stream=True, **body_of(body)):
        parts.append(chunk.choices[0].text)
        if len(parts) % 20 == 1:
            assert ask(shared, "hello").data[0].embedding == embedding(HELLO).tolist()
    assert "".join(parts) == alone


def body_of(fields: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in fields.items() if name != "ignore_eos"}
    return rest | {"extra_body": {"ignore_eos": fields["ignore_eos"]}}


def test_a_client_that_goes_away_cancels_all(serve: Callable[..., Running]) -> None:
    server = serve(slots=2)
    server.executor.gate.clear()
    body = json.dumps({"input": ["hello"] * 20})
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(server.address) as client:
        client.sendall((head + body).encode())
        server.until(lambda: server.engine.snapshot().running == 2)
    server.until(lambda: all(s.state.value == "draining" for s in server.engine.snapshot().slots))
    server.executor.gate.set()
    server.until(server.idle)
    assert server.executor.steps == 1


def test_a_full_queue_is_told_before_anything_is_computed(serve: Callable[..., Running]) -> None:
    server = serve(slots=1, queue=1)
    server.executor.gate.clear()
    streams = [server.engine.stream([1, 2, 3]) for _ in range(2)]
    # The place that a full queue keeps for a client without a request:
    with server.stream("/v1/completions", {"prompt": "hello", "stream": True}):
        response = server.post("/v1/embeddings", {"input": "hello"})
        assert response.status_code == 429
        assert "retry-after" in response.headers
    for stream in streams:
        stream.close()
    server.executor.gate.set()


def test_what_waits_is_bounded(serve: Callable[..., Running]) -> None:
    server = serve(backlog=64 * 1024)
    response = server.post("/v1/embeddings", {"input": ["hello"] * 2000})
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "backlog_full"


def test_numbers_that_are_none(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.poisonous = lambda history: 31 in history
    response = server.post("/v1/embeddings", {"input": [[1, 2], [1, 31, 2]]})
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]
    server.until(server.idle)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "[]"),
        ({"input": ["hello", ""]}, "input", "empty"),
        ({"input": [[]]}, "input[0]", "got []"),
        ({"input": None}, "input", "None"),
        ({"input": {"text": "hello"}}, "input.text", "unknown"),
        ({"input": [32]}, "input", "32"),
        ({"input": "hello" * 200}, "input", "Send at most 512"),
        ({"input": ["hello"] * 2049}, "input", "2048"),
        ({"encoding_format": "int8"}, "encoding_format", "base64"),
        ({"dimensions": 3}, "dimensions", "2"),
        ({"dimensions": 0}, "dimensions", "0"),
        ({"pooling": "max"}, "pooling", "mean"),
        ({"truncate": True}, "truncate", "unknown"),
        ({"cache_salt": ""}, "cache_salt", "1 to 256"),
    ],
)
def test_what_is_refused(shared: Running, fields: dict[str, Any], param: str, said: str) -> None:
    response = shared.post("/v1/embeddings", {"input": "hello"} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_an_empty_text_has_a_vector_if_the_model_begins_texts_with_a_token(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = FakeTokenizer.encode
    monkeypatch.setattr(FakeTokenizer, "encode", lambda *text, **_: [1, *encode(*text)])
    empty, _ = ask(shared, ["", "a"]).data
    assert empty.embedding == embedding([1]).tolist()


@pytest.mark.extensions
def test_so_it_has_by_llama_cpp_s_route(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = FakeTokenizer.encode
    monkeypatch.setattr(FakeTokenizer, "encode", lambda *text, **_: [1, *encode(*text)])
    assert shared.post("/embedding", {"content": ""}).json()[0]["embedding"]


@pytest.mark.parametrize("dimensions", [1, 2])
def test_fewer_dimensions_than_the_width(shared: Running, dimensions: int) -> None:
    assert len(ask(shared, "hello", dimensions=dimensions).data[0].embedding) == dimensions


def test_another_model_is_unknown(shared: Running) -> None:
    response = shared.post("/v1/embeddings", {"input": "hello", "model": "other"})
    assert response.status_code == 404


def test_vectors_count_until_they_are_taken() -> None:
    backlog = Backlog(100)
    gathering = Gathering(backlog)
    gathering.add(1, b"ab")
    gathering.add(0, b"c")
    assert backlog.held == 3
    assert gathering.take() == [b"c", b"ab"]
    assert backlog.held == 0
