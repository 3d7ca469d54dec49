"""The requests of llama.vim and llama.vscode, from `data/`, work unchanged.

Each file names the commit and each request the function that builds it. The texts are ours. `added`
names the fields that the client does not send: they keep the answer short. `ignored` lists the
hints without effect, and `answer` the fields that the client may read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client_requests import clients_in, ignored_in, requests_of
from fake_model import FakeTokenizer
from fake_server import Running, run_server
from heddle.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = clients_in(Path(__file__).parent / "data")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with FIM tokens. Instructions about tools are long for a token per letter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTokenizer, "fills_in", True)
        with run_server(ServerConfig(port=0), context=4096) as running:
            yield running


def test_both_editors_are_here() -> None:
    assert [client["client"] for client in CLIENTS] == ["llama.vim", "llama.vscode"]


@pytest.mark.parametrize("request_", requests_of(CLIENTS))
def test_a_request_is_served(server: Running, request_: dict[str, Any]) -> None:
    body, path = request_.get("body"), request_["path"]
    response = server.get(path) if body is None else server.post(path, body)
    assert response.status_code == 200, response.text
    assert ignored_in(response) == sorted(request_.get("ignored", []))
    selects = path == "/infill" and "response_fields" in body
    for answer in _answers(response.text, streams=bool(body and body.get("stream"))):
        assert set(request_["answer"]) <= answer.keys()
        assert not selects or list(answer) == request_["answer"]


def _answers(text: str, *, streams: bool) -> list[dict[str, Any]]:
    """The JSON objects of a response: one, the choices of a list, or the events of a stream."""
    if streams:
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]
    answer = json.loads(text)
    return answer if isinstance(answer, list) else [answer]
