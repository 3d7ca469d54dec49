"""`/v1/responses` as OpenAI's official client sees it, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.types.responses import Response

from checked_responses import events_of, response_of
from fake_executor import solo_output
from fake_model import FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

SEEDED = {"seed": 1, "ignore_eos": True}
BODY: dict[str, Any] = {"model": "fake", "input": "hello", "max_output_tokens": 8} | SEEDED
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def text_after(prompt: str, max_tokens: int = 8) -> str:
    params = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return text_of(solo_output(FakeTokenizer().encode(prompt), params, 512))


def create(server: Running, **fields: Any) -> Response:
    return response_of(server.post("/v1/responses", BODY | fields))


def stream(server: Running, **fields: Any) -> list[dict[str, Any]]:
    return events_of(server.post("/v1/responses", BODY | {"stream": True} | fields))


def test_a_response(shared: Running) -> None:
    made = create(shared, metadata={"tag": "x"}, temperature=0.5, user="me", store=False)
    assert made.id.startswith("resp_")
    assert (made.object, made.model, made.metadata) == ("response", "fake", {"tag": "x"})
    assert (made.status, made.error) == ("incomplete", None)
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert (made.temperature, made.top_p, made.max_output_tokens) == (0.5, 1.0, 8)
    assert (made.tools, made.tool_choice, made.previous_response_id) == ([], "auto", None)
    [item] = made.output
    assert item.type == "message"
    assert (item.role, item.status, len(item.content)) == ("assistant", "incomplete", 1)
    usage = made.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (len("user- hello."), 8)
    assert usage.total_tokens == usage.input_tokens + 8
    counted = shared.openai.responses.input_tokens.count(model="fake", input="hello")
    assert counted.input_tokens == usage.input_tokens


def test_an_answer_that_ends_by_itself_is_complete(shared: Running) -> None:
    made = create(shared, max_output_tokens=400, ignore_eos=False, seed=3)
    assert (made.status, made.incomplete_details) == ("completed", None)
    assert made.output[0].status == "completed"
    assert made.completed_at is not None


def test_instructions_and_items_are_one_conversation(shared: Running) -> None:
    first = {"role": "user", "content": "hel"}
    parts = [{"type": "input_text", "text": "l"}, {"type": "input_text", "text": "o"}]
    made = create(
        shared,
        instructions="be",
        input=[
            first,
            {"type": "message", "role": "developer", "content": parts},
            {"role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
            first,
        ],
    )
    conversation = "system- be.\nuser- hel.\nsystem- l\no.\nassistant- so.\nuser- hel."
    assert made.output_text == text_after(conversation)
    assert made.instructions == "be"


def test_an_earlier_output_comes_back_as_it_is(shared: Running) -> None:
    client = shared.openai
    made = client.responses.create(
        model="fake", input="hello", max_output_tokens=8, extra_body=SEEDED | LOGPROBS
    )
    question: Any = {"role": "user", "content": "and"}
    again = client.responses.create(
        model="fake",
        input=[{"role": "user", "content": "hello"}, *made.output, question],  # type: ignore[list-item]
        max_output_tokens=8,
        extra_body=SEEDED,
    )
    said = f"user- hello.\nassistant- {made.output_text}.\nuser- and."
    assert again.output_text == text_after(said)


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"stop": "q"}, {"max_output_tokens": 1}])
def test_a_stream_adds_up_to_the_whole(shared: Running, fields: dict[str, Any]) -> None:
    whole = create(shared, **fields)
    events = stream(shared, **fields)
    last = Response.model_validate(events[-1]["response"])
    told = {"created_at", "completed_at", "id", "usage", "timings", "output"}
    assert last.model_dump(exclude=told) == whole.model_dump(exclude=told)
    assert last.output_text == whole.output_text
    assert last.output[0].content[0] == whole.output[0].content[0]  # type: ignore[union-attr]
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    assert "".join(one["delta"] for one in deltas) == whole.output_text
    if fields is LOGPROBS:
        said = [entry for one in deltas for entry in one["logprobs"]]
        assert said == events[-1]["response"]["output"][0]["content"][0]["logprobs"]
        assert [len(entry["top_logprobs"]) for entry in said] == [2] * 8


def test_the_events_of_a_stream(shared: Running) -> None:
    events = stream(shared)
    kinds = [one["type"].removeprefix("response.") for one in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    last = events[-1]["response"]
    for one in events[:2]:
        assert one["response"]["id"] == last["id"]
        assert (one["response"]["status"], one["response"]["output"]) == ("in_progress", [])


def test_a_stream_without_text_has_an_item(shared: Running) -> None:
    text = text_after("user- hello.")
    events = stream(shared, stop=text[0])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_the_clients_own_stream(shared: Running) -> None:
    with shared.openai.responses.stream(
        model="fake", input="hello", extra_body=BODY | {"stop": "q", "max_output_tokens": 400}
    ) as events:
        text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
        final = events.get_final_response()
    assert text == final.output_text
    assert final.status == "completed"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_form_is_kept_to(shared: Running, streamed: bool) -> None:
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "boolean"}}
    fields = {"text": {"format": form}, "max_output_tokens": 20}
    if streamed:
        made = Response.model_validate(stream(shared, **fields)[-1]["response"])
    else:
        made = create(shared, **fields)
    assert made.output_text in {"true", "false"}
    assert made.status == "completed"
    assert made.text is not None and made.text.format is not None
    assert made.text.format.type == "json_schema"
    assert made.text.format.schema_ == {"type": "boolean"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": {"format": {"type": "xml"}}}, "text.format.type must be"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "needs text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "cannot have text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "nope"}}}},
            "text.format.schema",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        ({"conversation": "c"}, "conversation is not supported"),
        ({"background": True}, "background is not supported"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type is a tool of OpenAI's servers"),
        ({"tools": [{"type": "function", "name": "no good"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice requires a call, but tools is missing"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type must be"),
        (
            {"tools": [{"type": "mcp", "server_label": "x"}]},
            "tools[0].type is a tool of OpenAI's servers and models",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "any", "tools": []}},
            "tool_choice.mode",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools must have at least 1 item",
        ),
        ({"n": 2}, "unknown parameter: n"),
        ({"max_tokens": 2}, "unknown parameter: max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens must be"),
        ({"top_logprobs": 2}, "top_logprobs needs 'message.output_text.logprobs' in include"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"input": None}, "input must be a string or a list of items"),
        ({"input": []}, "input must be"),
        ({"input": [{"type": "item_reference"}]}, "input[0] is not supported by this server"),
        ({"input": ["a"]}, "input must be a string or a list of items"),
        ({"input": [{"role": "user", "content": "a"}, 3]}, "input[1] is not supported"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role must be"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": "x" * 600}, "context"),
        ({"metadata": {f"k{i}": "" for i in range(17)}}, "metadata"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_refused(
    shared: Running, fields: dict[str, Any], said: str, streamed: bool
) -> None:
    answer = shared.post("/v1/responses", BODY | fields | {"stream": streamed})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_what_asks_for_nothing_is_accepted(shared: Running) -> None:
    create(
        shared,
        text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": None},
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        truncation="disabled",
        background=False,
        include=[],
        stream_options={"include_obfuscation": False},
    )


def test_a_stream_that_fails_says_so(serve: Callable[..., Running]) -> None:
    server = serve()

    def fail(step: int) -> None:
        if step == 3:
            raise RuntimeError("boom")

    server.executor.before_step = fail
    kinds = []
    with pytest.raises(openai.APIError, match="boom"):
        for one in server.openai.responses.create(
            model="fake", input="hello", stream=True, extra_body=SEEDED
        ):
            kinds.append(one.type)
            last = one
    assert kinds[-1] == last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
