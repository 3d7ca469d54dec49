"""Requests of agents and chat programs, from `data/`, have the outcome that is written there.

Each file names the version of the client, or the file and the commit that build the request. The
fields are the client's, the texts are ours. `ignored` lists the fields in `x-heddle-ignored`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import templates
from client_requests import clients_in, ignored_in, requests_of
from talking_model import talking_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from talking_model import Talking

CLIENTS = clients_in(Path(__file__).parent / "data")


@pytest.fixture(scope="module")
def server() -> Iterator[Talking]:
    """A strict server of a model that does not reason."""
    with talking_server(templates.HERMES) as server:
        yield server


def test_each_client_has_its_source() -> None:
    names = [client["client"] for client in CLIENTS]
    assert names == ["Claude Code", "Codex", "Continue", "Open WebUI", "SillyTavern"]
    assert all(client["source"] for client in CLIENTS)


@pytest.mark.parametrize("request_", requests_of(CLIENTS))
def test_a_request_has_its_outcome(server: Talking, request_: dict[str, Any]) -> None:
    server.says("a")
    response = server.post(request_["path"], request_["body"])
    assert response.status_code == request_["status"], response.text
    assert ignored_in(response) == sorted(request_["ignored"])


@pytest.mark.extensions
def test_a_system_message_of_claude_code_stays_in_its_place(server: Talking) -> None:
    server.says("a")
    messages = [
        {"role": "user", "content": "one"},
        {"role": "system", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "three"},
    ]
    server.post("/v1/messages", {"model": "fake", "max_tokens": 3, "messages": messages})
    places = [server.prompt.index(text) for text in ("one", "two", "three")]
    assert places == sorted(places)
    assert "<|im_start|>system\ntwo" in server.prompt


def test_codex_calls_functions_beside_tools_that_are_left_out(server: Talking) -> None:
    [body] = [
        request["body"]
        for client in CLIENTS
        for request in client["requests"]
        if (client["client"], request["what"]) == ("Codex", "begins a turn")
    ]
    server.says('<tool_call>{"name": "get_goal", "arguments": {"cmd": "a"}}</tool_call>')
    answer = server.post("/v1/responses", body | {"stream": False}).json()
    assert [item["type"] for item in answer["output"]] == ["function_call"]
    assert [tool["name"] for tool in answer["tools"]] == ["exec_command", "view_image", "get_goal"]
    assert "web_search" not in server.prompt
