"""OpenAI's official client over a socket, on the default model, one endpoint after the other.

The client validates every answer and every event against its own types. The tests hold for its
newest major version and for the one before; `scripts/check_clients.sh` runs this file with that
one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from heddle import Engine, EngineConfig
from heddle.config import DEFAULT_MODEL, ServerConfig
from live_server import live_server, needs_own_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live_server import LiveServer

pytestmark = pytest.mark.model

MODEL = DEFAULT_MODEL
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
BRIEF: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8}
FULL = {"n": 4, "max_tokens": 1000, "extra_body": {"ignore_eos": True}}
"""What fills both slots and the queue."""


class Colour(BaseModel):
    """Small enough that the model cannot say it at length."""

    name: Literal["red", "green", "blue"]
    brightness: int = Field(ge=0, le=9)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(MODEL, EngineConfig(slots=2, queue=2)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[LiveServer]:
    with live_server(engine) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveServer]:
    """A server with a key, and with little patience for long bodies."""
    config = ServerConfig(port=0, api_key=("sk-right",), max_body=1 << 16)
    with Engine.load(MODEL, EngineConfig(slots=1)) as engine, live_server(engine, config) as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with connect(server) as client:
        yield client


def connect(server: LiveServer, **options: Any) -> OpenAI:
    common = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
    return OpenAI(base_url=f"{server.url}/v1", **common | options)


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"messages": QUESTION} | BRIEF | fields)


def until_idle(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE
    while (now := engine.snapshot()).running or now.queue_depth:
        assert time.monotonic() < deadline, "requests go on whose client has left"
        time.sleep(0.001)  # lets the engine's thread run


# --- models --------------------------------------------------------------------------------------


def test_models(client: OpenAI) -> None:
    [listed] = client.models.list()
    assert listed.id == MODEL
    retrieved = client.models.retrieve(MODEL)
    changing = {"uptime_seconds", "device_memory"}
    assert retrieved.model_dump(exclude=changing) == listed.model_dump(exclude=changing)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


# --- chat ----------------------------------------------------------------------------------------


def test_a_chat_streams_what_it_is_whole(client: OpenAI) -> None:
    shown = {"logprobs": True, "top_logprobs": 3}
    whole = ask(client, **shown)
    *chunks, last = ask(client, **shown, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 8
    assert last.usage.prompt_tokens_details.cached_tokens > 0, "the same prompt was there before"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    tokens = [
        token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    [choice] = whole.choices
    assert text == choice.message.content
    assert tokens == choice.logprobs.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason == "length"


def test_the_chats_own_stream(client: OpenAI) -> None:
    stop = ask(client).choices[0].message.content[10:14]
    whole = ask(client, stop=stop)
    with client.chat.completions.stream(messages=QUESTION, stop=stop, **BRIEF) as events:
        text = "".join(event.delta for event in events if event.type == "content.delta")
        final = events.get_final_completion()
    assert text == final.choices[0].message.content == whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_choices_and_stop(client: OpenAI, stream: bool) -> None:
    fields: Any = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 16, "stop": [".", "\n"]}
    whole = ask(client, **fields)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    assert not any(stop in text for stop in fields["stop"] for text in texts)
    if stream:
        streamed = ["", "", ""]
        for chunk in ask(client, **fields, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert streamed == texts
    else:
        again = [choice.message.content for choice in ask(client, **fields).choices]
        assert again == texts, "the seed is the same"


def test_logit_bias(client: OpenAI, engine: Engine) -> None:
    [token] = engine.model.tokenizer.encode(" blue", add_special=False)
    answer = ask(client, logit_bias={str(token): 100}, max_tokens=3)
    assert answer.choices[0].message.content == " blue blue blue"


def test_fields_that_ask_for_nothing(client: OpenAI) -> None:
    answer = ask(
        client,
        max_tokens=None,
        max_completion_tokens=3,
        user="me",
        metadata={"tag": "x"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        parallel_tool_calls=True,
    )
    assert answer.usage.completion_tokens == 3


def test_a_chat_is_parsed(client: OpenAI) -> None:
    fields: Any = BRIEF | {"max_tokens": 60}
    answer = client.chat.completions.parse(
        messages=QUESTION, response_format=Colour, **fields
    ).choices[0]
    assert isinstance(answer.message.parsed, Colour)
    sent_back = {"role": "assistant", "content": answer.message.content, "parsed": {"name": "red"}}
    assert ask(client, messages=[*QUESTION, sent_back, *QUESTION]).choices
    with client.chat.completions.stream(
        messages=QUESTION, response_format=Colour, **fields
    ) as events:
        [streamed] = events.get_final_completion().choices
    assert streamed.message.parsed == answer.message.parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=QUESTION, response_format=Colour, **BRIEF)


def test_functions_are_called(client: OpenAI) -> None:
    tools: Any = [openai.pydantic_function_tool(Colour, name="paint")]
    fields: Any = BRIEF | {"max_tokens": 80, "tools": tools, "tool_choice": "required"}
    fields["parallel_tool_calls"] = False
    [choice] = client.chat.completions.parse(messages=QUESTION, **fields).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls or ()
    assert call.function.name == "paint"
    assert isinstance(call.function.parsed_arguments, Colour)
    with client.chat.completions.stream(messages=QUESTION, **fields) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        [streamed] = events.get_final_completion().choices
    assert streamed.message.tool_calls is not None
    assert streamed.message.tool_calls[0].function == call.function
    assert [event.parsed_arguments for event in done] == [call.function.parsed_arguments]
    result = {"role": "tool", "tool_call_id": call.id, "content": "painted"}
    said = [*QUESTION, choice.message, result]
    assert ask(client, messages=said, tools=tools).choices[0].message.content is not None
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, tools=tools, tool_choice={"type": "function", "function": {"name": "x"}})
    assert refusal.value.param == "tool_choice"


# --- completions ---------------------------------------------------------------------------------


def complete(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(**BRIEF | {"prompt": prompt} | fields)


def test_prompts_of_every_kind(client: OpenAI, engine: Engine) -> None:
    text = "Monday, Tuesday, Wednesday,"
    ids = engine.model.tokenizer.encode(text)
    [alone] = complete(client, text).choices
    assert [choice.text for choice in complete(client, ids).choices] == [alone.text]
    for prompts in ([text, "Once upon"], [ids, engine.model.tokenizer.encode("Once upon")]):
        first, second = complete(client, prompts).choices
        assert (first.index, first.text) == (0, alone.text)
        assert (second.index, second.text != alone.text) == (1, True)


def test_a_completion_streams_what_it_is_whole(client: OpenAI, server: LiveServer) -> None:
    fields = {"echo": True, "stop": ["Sunday"]}
    whole = complete(client, "Monday, Tuesday,", **fields)
    # The client's type has no null for the finish reason, which OpenAI's own chunks have as well.
    with connect(server, _strict_response_validation=False) as tolerant:
        chunks = list(complete(tolerant, "Monday, Tuesday,", **fields, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].text.startswith("Monday, Tuesday,")


def test_the_best_of_several_completions(client: OpenAI) -> None:
    fields: Any = {"temperature": 1.0, "seed": 1, "logprobs": 2}

    def score(choice: Any) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    every = complete(client, "Once upon", n=3, **fields).choices
    [best] = complete(client, "Once upon", n=1, best_of=3, **fields).choices
    assert score(best) == max(map(score, every))
    assert len(best.logprobs.top_logprobs) == len(best.logprobs.tokens)


def test_how_likely_a_text_is(server: LiveServer, engine: Engine) -> None:
    """As lm-eval asks. The first token has no log probability, for which the types have no null."""
    ids = engine.model.tokenizer.encode("Monday, Tuesday, Wednesday,")
    with connect(server, _strict_response_validation=False) as tolerant:
        [choice] = complete(tolerant, ids, echo=True, logprobs=1, max_tokens=1).choices
    first, *others = choice.logprobs.token_logprobs
    assert first is None
    assert len(others) == len(ids)
    assert max(others) <= 0


def test_a_model_that_cannot_fill_in_says_so(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        complete(client, "def f(", suffix="return x")
    assert refusal.value.param == "suffix"


# --- responses -----------------------------------------------------------------------------------


def respond(client: OpenAI, **fields: Any) -> Any:
    body: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
    return client.responses.create(**body | {"input": "Name three colours."} | fields)


def test_a_response_is_the_chats_answer(client: OpenAI) -> None:
    response = respond(client)
    assert response.output_text == ask(client).choices[0].message.content
    assert (response.status, response.usage.output_tokens) == ("incomplete", 8)
    *_, last = respond(client, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.output_text == response.output_text


def test_a_conversation_goes_on(client: OpenAI) -> None:
    first = respond(client, instructions="Be brief.")
    asked: Any = {"role": "user", "content": "Name three colours."}
    more: Any = {"role": "user", "content": "And three more?"}
    again = respond(client, instructions="Be brief.", input=[asked, *first.output, more])
    said = [
        {"role": "system", "content": "Be brief."},
        asked,
        {"role": "assistant", "content": first.output_text},
        more,
    ]
    assert again.output_text == ask(client, messages=said).choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refusal:
        respond(client, previous_response_id=first.id)
    assert refusal.value.param == "previous_response_id"


def test_a_response_is_parsed(client: OpenAI) -> None:
    fields: Any = {"model": MODEL, "temperature": 0, "input": "A colour?", "text_format": Colour}
    response = client.responses.parse(max_output_tokens=60, **fields)
    assert isinstance(response.output_parsed, Colour)
    with client.responses.stream(max_output_tokens=60, **fields) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert final.output_parsed == response.output_parsed
    assert "".join(deltas) == response.output_text


def test_functions_are_called_in_a_response(client: OpenAI) -> None:
    paint = openai.pydantic_function_tool(Colour, name="paint")["function"]
    tools: Any = [{"type": "function", **paint}]
    fields: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 80, "tools": tools}
    forced: Any = fields | {"input": "A colour?", "tool_choice": "required"}
    forced["parallel_tool_calls"] = False
    response = client.responses.create(**forced)
    [call] = response.output
    assert (call.type, call.name, call.status) == ("function_call", "paint", "completed")
    colour = Colour.model_validate_json(call.arguments)
    with client.responses.stream(**forced) as events:
        deltas = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta"
        ]
        [streamed] = events.get_final_response().output
    assert "".join(deltas) == streamed.arguments == call.arguments
    assert streamed.parsed_arguments == colour.model_dump()
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "painted"}
    question: Any = {"role": "user", "content": "A colour?"}
    said = client.responses.create(**fields | {"input": [question, *response.output, output]})
    assert said.output


# --- embeddings ----------------------------------------------------------------------------------


def test_embeddings(client: OpenAI, server: LiveServer, engine: Engine) -> None:
    texts = ["Monday", "Tuesday", "a heddle"]
    numbers = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [entry.index for entry in numbers.data] == [0, 1, 2]
    vectors = [entry.embedding for entry in numbers.data]
    assert vectors[0] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-5)
    ids = engine.model.tokenizer.encode(texts[2])
    # Left to itself the client asks for base64, which it decodes only after it has validated.
    with connect(server, _strict_response_validation=False) as tolerant:
        [packed] = tolerant.embeddings.create(model=MODEL, input=ids).data
    assert packed.embedding == pytest.approx(vectors[2], abs=1e-6)
    fields: dict[str, Any] = {"model": MODEL, "input": "a", "encoding_format": "float"}
    [short] = client.embeddings.create(**fields, dimensions=2).data
    assert len(short.embedding) == 2
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(**fields, dimensions=len(vectors[0]) + 1)
    assert refusal.value.param == "dimensions"


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_names_the_field(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, temperature=-1, stream=stream)
    assert refusal.value.param == "temperature"
    assert refusal.value.type == "invalid_request_error"
    assert refusal.value.request_id is not None
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, extra_body={"tempreature": 1}, stream=stream)
    assert (refusal.value.param, refusal.value.code) == ("tempreature", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, model="other", stream=stream)
    assert missing.value.code == "model_not_found"


def test_what_is_not_served_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")


def test_a_body_that_is_too_long(locked: LiveServer) -> None:
    with (
        connect(locked, api_key="sk-right") as client,
        pytest.raises(openai.APIStatusError) as refusal,
    ):
        ask(client, messages=[{"role": "user", "content": "a" * (1 << 17)}])
    assert refusal.value.status_code == 413


def test_keys(locked: LiveServer) -> None:
    with (
        connect(locked, api_key="sk-wrong") as wrong,
        pytest.raises(openai.AuthenticationError) as refusal,
    ):
        ask(wrong)
    assert refusal.value.code == "invalid_api_key"
    with connect(locked, api_key="sk-right") as right:
        assert ask(right).choices


@needs_own_server("one request fills it")
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_server_says_when_to_come_again(
    client: OpenAI, engine: Engine, stream: bool
) -> None:
    with ask(client, **FULL, stream=True) as running:
        next(running)
        with pytest.raises(openai.RateLimitError) as refusal:
            ask(client, stream=stream)
        assert int(refusal.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            respond(client, stream=stream)
    until_idle(engine)
    assert ask(client).choices


@needs_own_server("the test looks into its engine")
def test_a_client_that_gives_up_frees_its_slot(server: LiveServer, engine: Engine) -> None:
    with connect(server, timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
        ask(client, **FULL)
    until_idle(engine)


def test_clients_of_an_event_loop(server: LiveServer, engine: Engine) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            _strict_response_validation=True,
        ) as client:

            async def one() -> str:
                text = ""
                stream = await client.chat.completions.create(
                    messages=QUESTION, stream=True, **BRIEF
                )
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                return text

            texts = await asyncio.gather(*(one() for _ in range(4)))
            async with asyncio.timeout(PATIENCE):
                left = await client.chat.completions.create(
                    messages=QUESTION, stream=True, **BRIEF | FULL
                )
                await anext(left)
                await left.close()
            return texts

    assert len(set(asyncio.run(main()))) == 1
    until_idle(engine)
