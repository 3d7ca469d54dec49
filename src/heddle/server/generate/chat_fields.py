"""Schemas of messages, functions and `tool_choice` that several APIs share, in OpenAI's shapes.

Several APIs use this shape, and chat templates expect it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from heddle.parameters import Api
from heddle.sent_pictures import SentPicture
from heddle.server.generate.tools import Chosen
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, TEXT, shape, shaped
from heddle.server.http.hints import SLOW
from heddle.server.http.schema import MAX_ITEMS, Schema

MAX_TOOLS = 1024
"""Most functions of a request, and most calls of a message."""

_CHATS = Api.CHAT | Api.TOKENIZE


@decided(_CHATS, "messages.content")
class TextPart(Schema):
    """A part of a message."""

    type: Literal["text"]
    text: str


@decided(_CHATS, "messages.content.image_url")
class ImageAddress(Schema):
    """A picture as an object: `url` is a data URL or an address."""

    url: Annotated[str, SLOW]


@decided(_CHATS, "messages.content")
class ImagePart(Schema):
    """A picture in a message: a data URL or an address, alone or in an object."""

    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, SLOW, Tag("<str>")] | Annotated[ImageAddress, Tag("<dict>")],
        shaped("a data URL, an address, or an object with url"),
    ]

    def sent(self, path: str) -> SentPicture:
        """The picture of this part, whose field is `path`."""
        if isinstance(self.image_url, str):
            return SentPicture(self.image_url, f"{path}.image_url")
        return SentPicture(self.image_url.url, f"{path}.image_url.url")


def tag_of_part(*kinds: str) -> Discriminator:
    """Select the schema of a part by its type: the tag of a type is `<TYPE>`, else `<words>`."""

    def tag(part: object) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        return f"<{kind}>" if kind in kinds else "<words>"

    return Discriminator(tag)


_Part = Annotated[
    Annotated[TextPart, Tag("<words>")] | Annotated[ImagePart, Tag("<image_url>")],
    tag_of_part("image_url"),
]
_Parts = Annotated[
    Annotated[list[_Part], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")]
    | Annotated[list[_Part], Tag("<list>")],
    shaped("a string or a list of parts of type text or image_url"),
]
Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[_Parts, Tag("<parts>")],
    Field(union_mode="left_to_right"),
]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


@decided(_CHATS, "tools.function")
class Function(Schema):
    """A function that the model may call. Without `parameters` it has no arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@decided(_CHATS, "tools")
class FunctionTool(Schema):
    """A function as an element of `tools`."""

    type: Literal["function"]
    function: Function


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), FIRST_FAULT]


class CalledFunction(Schema):
    """Name and arguments of a call. OpenAI's client adds and sends back `parsed_arguments`."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(Schema):
    """A call from an earlier answer."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None


@decided(Api.CHAT | Api.RESPONSES, "reasoning")
class ReasoningConfig(Schema):
    """Settings of reasoning. Only some chat templates use `effort`."""

    effort: str | None = None


@decided(_CHATS, "messages")
class ChatMessage(Schema):
    """A message. Clients may send back the empty fields of an earlier answer.

    A message with `tool_calls` needs no `content`. OpenAI's client adds and sends back `parsed`,
    its parsed form of the content. `reasoning` is a newer name of `reasoning_content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    parsed: Any = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_ITEMS), FIRST_FAULT]


class FunctionChoice(Schema):
    """The function to call, in the shape of OpenAI's responses."""

    type: Literal["function"]
    name: str

    @property
    def chosen(self) -> Chosen:
        """See `use_of`."""
        return Chosen.function(self.name)


class AllowedFunctions(Schema):
    """The functions that the answer may call, in the shape of OpenAI's responses."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS), FIRST_FAULT]

    @property
    def chosen(self) -> Chosen:
        """See `use_of`."""
        return Chosen([tool.name for tool in self.tools], self.mode == "required")


def _choice_shape(choice: object) -> str:
    is_allowed = isinstance(choice, dict) and choice.get("type") == "allowed_tools"
    return "<allowed_tools>" if is_allowed else shape(choice)


CHOICE_SHAPE = shaped(
    "'none', 'auto', 'required' or an object that names a function or the allowed functions",
    _choice_shape,
)

ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")]
    | Annotated[FunctionChoice, Tag("<dict>")]
    | Annotated[AllowedFunctions, Tag("<allowed_tools>")],
    CHOICE_SHAPE,
]
