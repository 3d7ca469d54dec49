"""Messages and functions as chat templates take them, which is the shape of OpenAI's chats.

Routes of several APIs take conversations in this shape.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from heddle.server.http.fields import FIRST_FAULT, only, shaped
from heddle.server.http.schema import MAX_ITEMS, Schema

MAX_TOOLS = 1024
"""Functions of a request, and calls of a message."""


class TextPart(Schema):
    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[list[TextPart], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")]
    | Annotated[list[TextPart], Tag("<list>")],
    shaped("a string or a list of parts of type text"),
]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Schema):
    """A function that may be called. Without `parameters` it has none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Schema):
    type: Literal["function"]
    function: Function


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), FIRST_FAULT]


class CalledFunction(Schema):
    """`parsed_arguments` is what OpenAI's client has made of the arguments, and sends back."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(Schema):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None


class ChatMessage(Schema):
    """One message. Fields of an earlier answer that a client sends back are accepted when empty.

    `content` may be left out of a message that has `tool_calls`. `parsed` is what OpenAI's client
    has made of the content, and sends back.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    reasoning_content: str | None = None
    parsed: Any = None

    function_call: Annotated[Any, only()] = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_ITEMS), FIRST_FAULT]
