"""Ollama's official client over a socket, on the default model.

The client parses every answer into its own types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import ollama
import pytest
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

import templates
from heddle import Engine, EngineConfig
from heddle.config import DEFAULT_MODEL, RegistryConfig, ServerConfig
from heddle.hosting.registry import Registry
from live_server import live_server
from talking_model import talking_server
from tiny_hub import tiny_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from live_server import LiveServer

pytestmark = pytest.mark.model

KEY = "sk-right"
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "num_predict": 8}
BODY: Any = {"model": DEFAULT_MODEL, "messages": QUESTION, "options": GREEDY}
PROMPT: Any = {"model": DEFAULT_MODEL, "prompt": "Name three colours.", "options": GREEDY}


class Colour(BaseModel):
    """Small enough that the model cannot say it at length."""

    name: Literal["red", "green", "blue"]
    shade: Literal["light", "dark"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with (
        Engine.load(DEFAULT_MODEL, EngineConfig(slots=2, context=1024)) as engine,
        live_server(engine, ServerConfig(port=0, api_key=(KEY,))) as server,
    ):
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with connect(server, KEY) as client:
        yield client


def connect(server: LiveServer, key: str) -> Client:
    return Client(server.url, headers={"authorization": f"Bearer {key}"})


def told(messages: Any) -> str:
    return "".join(one.message.content or "" for one in messages)


def test_a_chat_streams_what_it_is_whole(client: Client) -> None:
    whole = client.chat(**BODY)
    assert whole.message.role == "assistant"
    assert (whole.model, whole.done, whole.done_reason) == (DEFAULT_MODEL, True, "length")
    assert (whole.eval_count, whole.prompt_eval_count) == (8, 34)
    parts = list(client.chat(**BODY, stream=True))
    assert told(parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert (last.eval_count, last.done_reason) == (8, "length")
    assert last.total_duration > last.eval_duration > 0


async def test_asynchronous_chats(server: LiveServer, client: Client) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with AsyncClient(server.url, headers=headers) as other:
        whole = await other.chat(**BODY)
        parts = [part async for part in await other.chat(**BODY, stream=True)]
        listed = await other.list()
        embedded = await other.embed(DEFAULT_MODEL, "one")
    assert told(parts) == whole.message.content == client.chat(**BODY).message.content
    assert [one.model for one in listed.models] == [f"{DEFAULT_MODEL}:latest"]
    assert len(embedded.embeddings[0]) == 576


def test_a_prompt_and_its_context(client: Client) -> None:
    first = client.generate(**PROMPT, system="Be brief.")
    parts = list(client.generate(**PROMPT, system="Be brief.", stream=True))
    assert "".join(part.response for part in parts) == first.response
    assert list(parts[-1].context) == list(first.context)
    second = client.generate(**PROMPT | {"prompt": "More."}, context=first.context)
    assert second.prompt_eval_count > len(first.context)
    raw = client.generate(**PROMPT, raw=True)
    assert raw.prompt_eval_count < first.prompt_eval_count
    assert client.generate(DEFAULT_MODEL).done_reason == "load"


def test_formats(client: Client) -> None:
    unlimited = BODY | {"options": {"temperature": 0}}
    chosen = client.chat(**unlimited, format=Colour.model_json_schema())
    Colour.model_validate_json(chosen.message.content or "")
    limited = BODY | {"options": {"temperature": 0, "num_predict": 200}}
    text = client.chat(**limited, format="json").message.content or ""
    assert text.startswith("{")
    prompted = client.generate(
        **PROMPT | {"options": {"temperature": 0}}, format=Colour.model_json_schema()
    )
    Colour.model_validate_json(prompted.response)


def test_tools_are_described_and_results_are_read(client: Client) -> None:
    def add(first: int, second: int) -> int:
        """Add two numbers.

        Args:
            first: the first number
            second: the second number
        """
        return first + second

    plain = client.chat(**BODY)
    asked = client.chat(**BODY, tools=[add])
    assert asked.prompt_eval_count > plain.prompt_eval_count
    function = ollama.Message.ToolCall.Function(name="add", arguments={"first": 1, "second": 2})
    call = ollama.Message.ToolCall(function=function)
    turns = [
        ollama.Message(role="assistant", tool_calls=[call]),
        ollama.Message(role="tool", content="3", tool_name="add"),
    ]
    answered = client.chat(**BODY | {"messages": [*QUESTION, *turns]}, tools=[add])
    assert answered.prompt_eval_count > asked.prompt_eval_count


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_thinking_of_a_model_that_knows_them(*, stream: bool) -> None:
    said = '<think>Hm.</think><tool_call>\n{"name": "add", "arguments": {"first": 1}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "add"}}
    body: Any = {"model": "fake", "messages": QUESTION, "options": {"seed": 0}}
    with talking_server(templates.QWEN3) as server, Client(server.url) as client:
        server.says(said)
        answer = client.chat(**body, tools=[tool], think=True, stream=stream)
        parts = list(answer) if stream else [answer]
    [call] = [call for part in parts for call in part.message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("add", {"first": 1})
    assert "".join(part.message.thinking or "" for part in parts) == "Hm."
    assert told(parts) == ""


def test_thinking_of_a_model_that_does_not_reason(client: Client) -> None:
    plain = client.chat(**BODY).message
    for think in (True, False, "low"):
        assert client.chat(**BODY, think=think).message == plain


def test_logprobs(client: Client) -> None:
    answer = client.chat(**BODY, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == 8
    assert all(len(one.top_logprobs) == 2 for one in answer.logprobs)
    assert answer.logprobs[0].token == answer.logprobs[0].top_logprobs[0].token
    streamed = client.generate(**PROMPT, logprobs=True, stream=True)
    assert sum(len(part.logprobs or ()) for part in streamed) == 8


def test_every_option_of_the_client(client: Client) -> None:
    options = ollama.Options(
        numa=False, num_ctx=512, num_batch=64, num_gpu=0, main_gpu=0, low_vram=False, f16_kv=True,
        logits_all=False, vocab_only=False, use_mmap=True, use_mlock=False, embedding_only=False,
        num_thread=2, num_keep=4, seed=7, num_predict=4, top_k=20, top_p=0.9, tfs_z=1.0,
        typical_p=0.7, repeat_last_n=33, temperature=0.8, repeat_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.5, mirostat=0, mirostat_tau=5.0, mirostat_eta=0.1,
        penalize_newline=True, stop=["user:"],
    )  # fmt: skip
    answer = client.chat(**BODY | {"options": options}, keep_alive="5m")
    assert answer.eval_count == 4


def test_models(client: Client) -> None:
    [listed] = client.list().models
    assert (listed.model, listed.details.family) == (f"{DEFAULT_MODEL}:latest", "llama")
    assert listed.size > 90_000_000
    shown = client.show(listed.model)
    assert shown.details == listed.details
    assert shown.modelinfo["llama.context_length"] == 1024
    assert set(shown.capabilities or ()) == {"completion", "tools"}
    assert "<|im_start|>" in (shown.template or "")
    [running] = client.ps().models
    assert (running.model, running.context_length) == (listed.model, 1024)
    assert running.digest == listed.digest


def test_embeddings(client: Client) -> None:
    both = client.embed(DEFAULT_MODEL, ["one", "two"])
    assert [len(vector) for vector in both.embeddings] == [576, 576]
    assert sum(value * value for value in both.embeddings[0]) == pytest.approx(1, abs=1e-5)
    assert client.embed(DEFAULT_MODEL, "one").embeddings[0] == both.embeddings[0]
    assert len(client.embed(DEFAULT_MODEL, "one", dimensions=64).embeddings[0]) == 64
    assert client.embeddings(DEFAULT_MODEL, "one").embedding == both.embeddings[0]


def test_errors(client: Client) -> None:
    refused: list[tuple[int, Any]] = [
        (404, lambda: client.chat("other", QUESTION)),
        (404, lambda: list(client.chat("other", QUESTION, stream=True))),
        (404, lambda: client.show("other")),
        (400, lambda: client.chat(**BODY | {"options": {"top_p": 2}})),
        (400, lambda: client.generate(**PROMPT, images=[b"png"])),
        (400, lambda: client.generate(**PROMPT, template="{{ .Prompt }}")),
        (403, lambda: client.pull(DEFAULT_MODEL)),
        (403, lambda: client.delete(DEFAULT_MODEL)),
        (403, lambda: client.generate(DEFAULT_MODEL, keep_alive=0)),
        (501, lambda: client.create("mine", from_=DEFAULT_MODEL)),
        (501, lambda: client.copy(DEFAULT_MODEL, "mine")),
        (501, lambda: client.push(DEFAULT_MODEL)),
    ]
    for status, request in refused:
        with pytest.raises(ResponseError) as error:
            request()
        assert (error.value.status_code, bool(error.value.error)) == (status, True)


def test_models_are_pulled_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RegistryConfig(hub_models=True, autoload=True)
    with (
        tiny_hub(tmp_path, monkeypatch),
        Registry(config) as registry,
        live_server(registry) as live,
        Client(live.url) as client,
    ):
        progress = list(client.pull("hf.co/org/tiny", stream=True))
        assert progress[-1].status == "success"
        assert any(one.total and one.digest for one in progress)
        assert client.pull("hf.co/org/tiny").status == "success"
        [listed] = client.list().models
        answer = client.generate("hf.co/org/tiny", "ABC", options={"num_predict": 1})
        assert answer.eval_count == 1
        assert client.generate(listed.model, keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        assert client.delete(listed.model).status == "success"
        assert client.list().models == []
        with pytest.raises(ResponseError, match="not found"):
            client.delete(listed.model)


def test_the_answer_to_a_bad_key_is_an_error_of_the_client(server: LiveServer) -> None:
    with connect(server, "sk-wrong") as client, pytest.raises(ResponseError) as error:
        client.chat(**BODY)
    assert error.value.status_code == 401
    assert not error.value.error.startswith("{")
