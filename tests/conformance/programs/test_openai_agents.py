"""openai-agents with OpenAI's chats and responses."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

MODEL = "smollm2-135m"
ASKED = "Which colour is the sky?"
BRIEF: Any = {"temperature": 0, "max_tokens": 60}

pytestmark = pytest.mark.filterwarnings("default")
set_tracing_disabled(disabled=True)  # it goes to OpenAI


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shade: Literal["light", "dark"]


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, server: str) -> Any:
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    return request.param(model=MODEL, openai_client=client)


def agent(model: Any, **more: Any) -> Any:
    return Agent(name="helper", model=model, **{"model_settings": ModelSettings(**BRIEF)} | more)


async def test_a_text(model: Any) -> None:
    answer = await Runner.run(agent(model, instructions="Be brief."), ASKED)
    assert "blue" in answer.final_output


async def test_an_output_with_a_type(model: Any) -> None:
    answer = await Runner.run(agent(model, output_type=Colour), ASKED)
    assert isinstance(answer.final_output, Colour)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_function_is_called_and_its_result_is_read(model: Any, streams: bool) -> None:
    asked: list[str] = []

    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return "sunny"

    required = ModelSettings(**BRIEF, tool_choice="required", parallel_tool_calls=False)
    caller = agent(model, model_settings=required, tools=[function_tool(weather)])
    if streams:
        answer = Runner.run_streamed(caller, ASKED)
        kinds = [event.type async for event in answer.stream_events()]
        assert kinds.count("raw_response_event") > 10
    else:
        answer = await Runner.run(caller, ASKED)
    assert asked == ["Paris"]
    assert "sunny" in answer.final_output


async def test_an_agent_hands_over_to_another(model: Any) -> None:
    other = agent(model, handoff_description="Speaks Spanish.").clone(name="spanish")
    required = ModelSettings(**BRIEF, tool_choice="required")
    first = agent(model, model_settings=required, handoffs=[other])
    assert (await Runner.run(first, ASKED)).last_agent.name == "spanish"


async def test_settings(model: Any) -> None:
    wished = ModelSettings(
        max_tokens=9, top_p=0.9, reasoning=Reasoning(effort="low", summary="auto"),
        verbosity="low", store=False, metadata={"a": "b"}, truncation="auto", include_usage=True,
    )  # fmt: skip
    assert (await Runner.run(agent(model, model_settings=wished), ASKED)).final_output
