"""Schemas of `/api/chat` and `/api/generate`, after Ollama's API reference.

The server refuses templates in Go's language.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from heddle.extensions.ollama.fields import (
    Format,
    KeepAlive,
    ModelName,
    Options,
    Think,
    takes_parameters,
)
from heddle.parameters import MAX_TOP_LOGPROBS, Api
from heddle.server.generate.chat_fields import MAX_TOOLS, Function, ToolChoice
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, TokenIds
from heddle.server.http.hints import SLOW
from heddle.server.http.schema import MAX_ITEMS, Schema


class CalledFunction(Schema):
    name: str
    arguments: dict[str, Any]
    index: int | None = None


class ToolCall(Schema):
    """A call from an earlier answer."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


Images = Annotated[list[Annotated[str, SLOW]], Field(max_length=MAX_ITEMS), FIRST_FAULT]
"""Pictures, each as the base64 of its file."""


def _lower(role: object) -> object:
    return role.lower() if isinstance(role, str) else role


@decided(Api.OLLAMA_CHAT, "messages")
class Message(Schema):
    """A message. `tool_name` and `tool_call_id` say which call a message of a tool answers."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_lower)]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Images | None = None


@decided(Api.OLLAMA_CHAT, "tools")
class Tool(Schema):
    """A function that the model may call."""

    type: Literal["function"] | None = None
    function: Function


class GenerationBody(Schema):
    """The fields of both routes. `stream` is true by default.

    The server never shortens a prompt and never shifts the context.
    """

    model: ModelName
    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


@decided(Api.OLLAMA_CHAT)
@takes_parameters
class ChatRequest(GenerationBody):
    """Body of `POST /api/chat`. Without messages it loads or unloads the model."""

    messages: Annotated[list[Message], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    tool_choice: ToolChoice | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it asks for no answer."""
        return not self.messages


@decided(Api.OLLAMA_GENERATE)
@takes_parameters
class GenerateRequest(GenerationBody):
    """Body of `POST /api/generate`. Without a prompt it loads or unloads the model.

    `context` is the `context` of an earlier answer, which this request continues.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    context: TokenIds | None = None
    raw: bool | None = None
    images: Images | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it asks for no answer."""
        return not self.prompt
