"""LiteLLM's providers for servers such as this one."""

from __future__ import annotations

import json
from typing import Any

import litellm
import openai
import pytest

MODEL = "smollm2-135m"
ASKED = [{"role": "user", "content": "Name three colours."}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
OPENAI = ["openai", "hosted_vllm", "llamafile"]
OLLAMA = ["ollama", "ollama_chat"]
PROVIDERS = [*OPENAI, "anthropic", *OLLAMA]

pytestmark = pytest.mark.filterwarnings("default")


def options(server: str, provider: str) -> dict[str, Any]:
    base = f"{server}/v1" if provider in OPENAI else server
    return {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none"}


def ask(server: str, provider: str, **fields: Any) -> Any:
    common = {"messages": ASKED, "max_tokens": 8, "temperature": 0, "num_retries": 0}
    return litellm.completion(**options(server, provider) | common | fields)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_chat_streams_what_it_is_whole(server: str, provider: str) -> None:
    whole = ask(server, provider)
    [choice] = whole.choices
    assert whole.usage.completion_tokens == 8
    parts = list(ask(server, provider, stream=True))
    said = "".join(part.choices[0].delta.content or "" for part in parts)
    assert said == choice.message.content
    assert said.startswith("1. Red: Th")
    assert len(parts) > 4


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_asynchronous_chats(server: str, provider: str) -> None:
    answer = await litellm.acompletion(**options(server, provider), messages=ASKED, max_tokens=8)
    assert answer.choices[0].message.content.startswith("1. Red: Th")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", [*OPENAI, "anthropic"])
def test_a_function_is_called(server: str, provider: str, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    answer = ask(server, provider, tools=[WEATHER], tool_choice=named, max_tokens=60, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')


@pytest.mark.parametrize("provider", OLLAMA)
def test_functions_reach_the_prompt(server: str, provider: str) -> None:
    """Ollama cannot require a call, so the small model answers with words."""
    described = ask(server, provider, tools=[WEATHER]).usage.prompt_tokens
    assert described > ask(server, provider).usage.prompt_tokens + 50


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_answer_follows_a_schema(server: str, provider: str) -> None:
    named = {"name": "place", "schema": CITY | {"additionalProperties": False}, "strict": True}
    form = {"type": "json_schema", "json_schema": named}
    answer = ask(server, provider, response_format=form, max_tokens=60)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("provider", OPENAI)
def test_parameters(server: str, provider: str) -> None:
    wished = {"stop": ["Red"], "seed": 1, "top_p": 0.9, "frequency_penalty": 0.1, "user": "me"}
    scored = ask(server, provider, **wished, presence_penalty=0.1, logprobs=True, top_logprobs=2)
    [choice] = scored.choices
    assert (choice.message.content, choice.finish_reason) == ("1. ", "stop")
    assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)


@pytest.mark.parametrize("provider", [*OPENAI, "ollama"])
def test_embeddings(server: str, provider: str) -> None:
    answer = litellm.embedding(**options(server, provider), input=["one", "two"])
    assert [len(one["embedding"]) for one in answer.data] == [576, 576]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_responses(server: str, provider: str) -> None:
    answer = litellm.responses(
        **options(server, provider), input="Name three colours.", max_output_tokens=16
    )
    assert answer.output[0].content[0].text.startswith("1. Red: This is the most")


def test_documents_are_ranked(server: str) -> None:
    answer = litellm.rerank(
        **options(server, "hosted_vllm"), query="a colour", documents=["red", "table"]
    )
    assert sorted(one["index"] for one in answer.results) == [0, 1]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_refusal_is_an_error_of_the_client(server: str, provider: str) -> None:
    with pytest.raises(openai.APIError) as error:
        ask(server, provider, model=f"{provider}/other")
    assert "other" in str(error.value)
