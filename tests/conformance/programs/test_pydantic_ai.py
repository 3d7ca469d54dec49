"""pydantic-ai's models for OpenAI's chats and responses, and its provider for Ollama."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "smollm2-135m"
ASKED = "Which colour is the sky?"

pytestmark = pytest.mark.filterwarnings("default")


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shade: Literal["light", "dark"]


def chat(base: str) -> Any:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base, api_key="none"))


def responses(base: str) -> Any:
    return OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=base, api_key="none"))


def ollama(base: str) -> Any:
    return OllamaModel(MODEL, provider=OllamaProvider(base_url=base, api_key="none"))


@pytest.fixture(params=[chat, responses, ollama])
def model(request: pytest.FixtureRequest, server: str) -> Any:
    return request.param(f"{server}/v1")


def agent(model: Any, output: Any = str, **settings: Any) -> Any:
    limits: Any = {"temperature": 0, "max_tokens": 100} | settings
    return Agent(model, output_type=output, model_settings=limits, retries=0)


async def test_a_text_streams_what_it_is_whole(model: Any) -> None:
    brief = agent(model, max_tokens=20)
    whole = await brief.run(ASKED)
    assert whole.output.startswith("The sky is a shade of blue.")
    assert whole.usage.output_tokens == 20
    async with brief.run_stream(ASKED) as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    assert ("".join(parts), len(parts) > 4) == (whole.output, True)


@pytest.mark.parametrize("output", [Colour, ToolOutput(Colour, strict=True), NativeOutput(Colour)])
async def test_an_output_with_a_type(model: Any, output: Any) -> None:
    assert isinstance((await agent(model, output).run(ASKED)).output, Colour)
    async with agent(model, output).run_stream(ASKED) as stream:
        parts = [part async for part in stream.stream_output(debounce_by=None)]
    assert isinstance(parts[-1], Colour)


async def test_an_output_that_the_prompt_describes(model: Any) -> None:
    """Nothing enforces it: earlier turns show the small model what to write."""
    turns: list[Any] = []
    for thing, name in (("grass", "green"), ("fire", "red"), ("sea", "blue")):
        turns.append(ModelRequest([UserPromptPart(f"Which colour is the {thing}?")]))
        answered = Colour.model_validate({"name": name, "shade": "dark"}).model_dump_json()
        turns.append(ModelResponse([TextPart(answered)]))
    answer = await agent(model, PromptedOutput(Colour)).run(ASKED, message_history=turns)
    assert isinstance(answer.output, Colour)


async def test_a_function_is_called_and_its_result_is_read(model: Any) -> None:
    asked: list[str] = []

    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return "sunny"

    forced = agent(model, ToolOutput(weather, name="weather"))
    assert (await forced.run("The weather of Rome?")).output == "sunny"
    assert len(asked) == 1
    free = Agent(model, tools=[weather], model_settings={"temperature": 0, "max_tokens": 30})
    assert (await free.run("Hello!")).output


async def test_settings(model: Any) -> None:
    wished: dict[str, Any] = {"top_p": 0.9, "seed": 1, "presence_penalty": 0.1}
    wished |= {"logit_bias": {"5": 1}, "stop_sequences": ["x"], "parallel_tool_calls": False}
    assert (await agent(model, max_tokens=5, thinking="low", **wished).run(ASKED)).output
