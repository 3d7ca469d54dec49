"""instructor in each mode that its providers for OpenAI and Anthropic have.

Most modes send a schema, which the server's grammar enforces. The others describe it in the prompt.
There, earlier turns show the small model what to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import instructor
import pytest
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel

MODEL = "smollm2-135m"
ASKED = [{"role": "user", "content": "Which colour is the sky? Answer with name and shade."}]

pytestmark = pytest.mark.filterwarnings("default")


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shade: Literal["light", "dark"]


def openai(server: str, mode: Mode) -> Any:
    client = OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def anthropic(server: str, mode: Mode) -> Any:
    client = Anthropic(base_url=server, api_key="none", max_retries=0)
    return instructor.from_anthropic(client, mode=mode)


def limit(mode: Mode) -> dict[str, Any]:
    name = "max_output_tokens" if "RESPONSES" in mode.name else "max_tokens"
    return {"model": MODEL, "max_retries": 0, name: 120}


SCHEMAS = [
    (openai, Mode.TOOLS),
    (openai, Mode.TOOLS_STRICT),
    (openai, Mode.FUNCTIONS),
    (openai, Mode.JSON_SCHEMA),
    (openai, Mode.RESPONSES_TOOLS),
    (openai, Mode.RESPONSES_TOOLS_WITH_INBUILT_TOOLS),
    (anthropic, Mode.TOOLS),
    (anthropic, Mode.ANTHROPIC_TOOLS),
]


@pytest.mark.parametrize(("connect", "mode"), SCHEMAS)
def test_modes_that_send_a_schema(server: str, connect: Any, mode: Mode) -> None:
    client = connect(server, mode)
    whole = client.chat.completions.create(response_model=Colour, messages=ASKED, **limit(mode))
    assert isinstance(whole, Colour)
    parts = list(
        client.chat.completions.create_partial(response_model=Colour, messages=ASKED, **limit(mode))
    )
    assert len(parts) > 1
    assert Colour.model_validate(parts[-1].model_dump())


def test_an_anthropic_mode_with_reasoning(server: str) -> None:
    mode = Mode.ANTHROPIC_REASONING_TOOLS
    client = anthropic(server, mode)
    answer = client.chat.completions.create(
        response_model=Colour, messages=ASKED, **limit(mode) | {"max_tokens": 2000}
    )
    assert isinstance(answer, Colour)


def shown(pattern: str, thing: str = "sky") -> list[dict[str, str]]:
    """A conversation whose answers have the form `pattern`."""
    known = [("grass", "green", "dark"), ("fire", "red", "light"), ("sea", "blue", "dark")]
    turns = []
    for shown_thing, name, shade in known:
        turns.append({"role": "user", "content": f"Which colour is the {shown_thing}?"})
        answer = Colour.model_validate({"name": name, "shade": shade}).model_dump_json()
        turns.append({"role": "assistant", "content": pattern % answer})
    return [*turns, {"role": "user", "content": f"Which colour is the {thing}?"}]


WORDS = [
    (openai, Mode.JSON, "%s"),
    (openai, Mode.JSON_O1, "%s"),
    (openai, Mode.MD_JSON, "```json\n%s\n```"),
    (anthropic, Mode.JSON, "%s"),
    (anthropic, Mode.ANTHROPIC_JSON, "%s"),
    (anthropic, Mode.JSON_SCHEMA, "%s"),
]


@pytest.mark.parametrize(("connect", "mode", "pattern"), WORDS)
def test_modes_that_describe_the_schema(
    server: str, connect: Any, mode: Mode, pattern: str
) -> None:
    client = connect(server, mode)
    answer = client.chat.completions.create(
        response_model=Colour, messages=shown(pattern), **limit(mode)
    )
    assert isinstance(answer, Colour)


@pytest.mark.parametrize(("connect", "thing"), [(openai, "sky"), (anthropic, "fire")])
def test_several_objects(server: str, connect: Any, thing: str) -> None:
    """The model may call functions, but it need not, and nothing enforces their arguments."""
    client = connect(server, Mode.PARALLEL_TOOLS)
    call = '<tool_call>\n{"name": "Colour", "arguments": %s}\n</tool_call>'
    answer = client.chat.completions.create(
        response_model=Iterable[Colour], messages=shown(call, thing), **limit(Mode.PARALLEL_TOOLS)
    )
    assert [type(one) for one in answer] == [Colour]


def test_a_list_of_objects(server: str) -> None:
    client = openai(server, Mode.TOOLS)
    found = client.chat.completions.create_iterable(
        response_model=Colour, messages=ASKED, **limit(Mode.TOOLS)
    )
    assert all(isinstance(one, Colour) for one in found)


def test_a_name_of_a_provider(server: str) -> None:
    client = instructor.from_provider(f"openai/{MODEL}", base_url=f"{server}/v1", api_key="none")
    assert isinstance(client.chat.completions.create(response_model=Colour, messages=ASKED), Colour)
