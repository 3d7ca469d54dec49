"""`/v1/messages` as Anthropic's official client sees it, over a socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running

ASKED = [{"role": "user", "content": "hello"}]
BODY = {"model": "fake", "max_tokens": 8, "messages": ASKED}
SEEDED = {"seed": 1, "ignore_eos": True}


def tokens(prompt: str, max_tokens: int = 8) -> list[int]:
    params = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return solo_output(FakeTokenizer().encode(prompt), params, 512)


@pytest.fixture
def client(shared: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(**(BODY | {"extra_body": SEEDED} | fields))


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = ask(
        client, metadata={"user_id": "me"}, extra_body=SEEDED | {"temperature": 1.0, "top_k": 0}
    )
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    [block] = answer.content
    assert (block.type, block.text) == ("text", text_of(tokens("user- hello.")))
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len("user- hello.")
    assert usage.output_tokens == 8


def test_system_and_blocks(client: anthropic.Anthropic) -> None:
    mark = {"type": "ephemeral"}
    system = [{"type": "text", "text": "be", "cache_control": mark}, {"type": "text", "text": "x"}]
    blocks = [{"type": "text", "text": "the"}, {"type": "text", "text": "sea"}]
    answer = ask(client, system=system, messages=[{"role": "user", "content": blocks}])
    assert answer.content[0].text == text_of(tokens("system- be\nx.\nuser- the\nsea."))


def test_a_message_of_the_assistant_is_gone_on_with(client: anthropic.Anthropic) -> None:
    answer = ask(client, messages=[*ASKED, {"role": "assistant", "content": "so "}])
    assert answer.content[0].text == text_of(tokens("user- hello.\nassistant- so "))


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    text = text_of(tokens("user- hello."))
    answer = ask(client, stop_sequences=["never-", text[2:4]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[2:4])
    assert answer.content[0].text == text[:2]
    assert ask(client, stop_sequences=[text[0]]).content == []


def test_the_end_of_a_turn(client: anthropic.Anthropic) -> None:
    answer = ask(client, max_tokens=400, extra_body={"seed": 3})
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)


def test_a_stream_adds_up_to_the_whole(client: anthropic.Anthropic) -> None:
    whole = ask(client, stop_sequences=["q"])
    options = BODY | {"extra_body": SEEDED, "stop_sequences": ["q"]}
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert (last.stop_reason, last.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert last.usage.output_tokens == whole.usage.output_tokens
    found = last.usage.cache_read_input_tokens
    assert last.usage.input_tokens + found == len("user- hello.")
    assert found == len("user- hello.") - 1, "the same prompt was there before"


def test_the_events_of_a_stream(shared: Running) -> None:
    answer = shared.post("/v1/messages", BODY | SEEDED | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [event.split("\n") for event in answer.text.split("\n\n")[:-1]]
    names = [name.removeprefix("event: ") for name, _ in lines]
    data = [json.loads(line.removeprefix("data: ")) for _, line in lines]
    assert names == [one["type"] for one in data]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = data[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == len("user- hello.")


def test_count_tokens(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="fake", messages=ASKED, system="be")
    assert count.input_tokens == len("system- be.\nuser- hello.")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            "tools[0].type is a tool whose schema only Anthropic's models know",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            "tools[0].type is a tool that runs on Anthropic's servers",
        ),
        (
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]},
            "tools[0].type is a tool that runs on Anthropic's servers",
        ),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].type must be 'custom'"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tools is missing or empty"),
        ({"tool_choice": {"type": "any", "name": "f"}}, "cannot have tool_choice.name"),
        ({"tool_choice": {"type": "tool"}}, "needs tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"foo": 1}, "unknown parameter: foo"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nope"}}}},
            "output_config.format.schema",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                    }
                ]
            },
            "messages[0].content[0] of type 'tool_use' needs the role 'assistant', got 'user'",
        ),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "context"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(shared: Running, fields: dict[str, Any], said: str, stream: bool) -> None:
    answer = shared.post("/v1/messages", BODY | fields | {"stream": stream})
    assert answer.status_code == 400
    body = answer.json()
    assert (set(body), set(body["error"])) == ({"type", "error"}, {"type", "message"})
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert said in body["error"]["message"]


def test_errors_are_those_of_the_client(
    client: anthropic.Anthropic, serve: Callable[..., Running]
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, model="other")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="two functions named 'f'"):
        client.messages.count_tokens(
            model="fake", messages=ASKED, tools=[{"name": "f", "input_schema": {}}] * 2
        )
    locked = serve(api_key=("sk-1",))
    wrong = anthropic.Anthropic(base_url=locked.url, api_key="sk-2", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError) as refused:
        ask(wrong)
    assert refused.value.body["error"]["type"] == "authentication_error"
    right = anthropic.Anthropic(base_url=locked.url, api_key="sk-1", max_retries=0)
    with right:
        assert ask(right).content
    locked.engine.close()
    closed = locked.post("/v1/messages", BODY | {"stream": True}, headers={"x-api-key": "sk-1"})
    assert (closed.status_code, closed.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_stream_that_fails_says_so(serve: Callable[..., Running]) -> None:
    server = serve()

    def fail(step: int) -> None:
        if step == 3:
            raise RuntimeError("boom")

    server.executor.before_step = fail
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with client, pytest.raises(anthropic.APIError, match="boom"):
        for _ in ask(client, stream=True):
            pass


def test_errors_have_anthropic_s_shape_on_paths_of_its_api_alone(shared: Running) -> None:
    batches = shared.get("/v1/messages/batches")
    assert batches.status_code == 404
    assert batches.json()["error"]["type"] == "not_found_error"
    assert shared.get("/messages/batches").json()["type"] == "error"
    other = shared.get("/v1/messagesandmore")
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "not_found"
