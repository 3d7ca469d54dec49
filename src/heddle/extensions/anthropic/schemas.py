"""Schemas of `/v1/messages` and `count_tokens`, after Anthropic's API reference.

The server refuses documents, and tools that Anthropic's servers run. It accepts cache control
marks, which have no effect: every prompt is cached.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from heddle.parameters import Api
from heddle.sampling_params import MAX_STOP_STRINGS, MAX_STRING_LENGTH
from heddle.sent_pictures import SentPicture
from heddle.server.generate.chat_fields import MAX_TOOLS, tag_of_part
from heddle.server.generate.parameters import SamplingSchema, offers
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, UNSUPPORTED, shaped, unserved
from heddle.server.http.hints import SLOW
from heddle.server.http.schema import MAX_ITEMS, Schema

_ALL = Api.MESSAGES | Api.COUNT


def _refuse_files(source: object) -> object:
    if isinstance(source, dict) and source.get("type") == "file":
        raise PydanticCustomError(
            UNSUPPORTED,
            "names a file of the vendor, and this server stores none; send the picture as base64",
        )
    return source


class Block(Schema):
    """The fields of all blocks."""

    cache_control: dict[str, Any] | None = None


@decided(_ALL, "messages.content")
class TextBlock(Block):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Block):
    """Reasoning of an earlier answer. The server does not read the signature."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Block):
    """A call from an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


Texts = Annotated[list[TextBlock], Field(max_length=MAX_ITEMS), FIRST_FAULT]
Content = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[Texts, Tag("<list of dict>")]
    | Annotated[Texts, Tag("<list>")],
    shaped("a string or a list of blocks of type text"),
]


class Base64Source(Schema):
    """A picture as the base64 of its file. The server looks at the file, not at `media_type`."""

    type: Literal["base64"]
    media_type: str | None = None
    data: Annotated[str, SLOW]


class UrlSource(Schema):
    """A picture by its address."""

    type: Literal["url"]
    url: Annotated[str, SLOW]


_Source = Annotated[
    Annotated[Base64Source, Tag("<words>")] | Annotated[UrlSource, Tag("<url>")],
    tag_of_part("url"),
]


class ImageBlock(Block):
    """A picture."""

    type: Literal["image"]
    source: Annotated[_Source, BeforeValidator(_refuse_files)]

    def sent(self, path: str) -> SentPicture:
        """The picture of this block, whose field is `path`."""
        if isinstance(self.source, UrlSource):
            return SentPicture(self.source.url, f"{path}.source.url")
        return SentPicture(self.source.data, f"{path}.source.data", is_base64=True)


_Results = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("<words>")] | Annotated[ImageBlock, Tag("<image>")],
            tag_of_part("image"),
        ]
    ],
    Field(max_length=MAX_ITEMS),
    FIRST_FAULT,
]
ResultContent = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[_Results, Tag("<list of dict>")]
    | Annotated[_Results, Tag("<list>")],
    shaped("a string or a list of blocks of type text or image"),
]


class ToolResultBlock(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent | None = None
    is_error: bool | None = None


AnyBlock = TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
Blocks = Annotated[
    list[Annotated[AnyBlock, Field(discriminator="type")]],
    Field(max_length=MAX_ITEMS),
    FIRST_FAULT,
]
TurnContent = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[Blocks, Tag("<list of dict>")]
    | Annotated[Blocks, Tag("<list>")],
    shaped("a string or a list of blocks"),
]


class Turn(Schema):
    """A message. Claude Code puts messages of the role `system` into the conversation, too."""

    role: Literal["user", "assistant", "system"]
    content: TurnContent


_OF_SERVERS = unserved(
    r"(web_search|web_fetch|code_execution|tool_search_tool|advisor)_\w+|mcp_toolset",
    "is a tool that runs on Anthropic's servers, and this server has none; leave it out, or send a"
    " function with name and input_schema that your program runs",
)
_OF_MODELS = unserved(
    r"(bash|computer|memory|text_editor)_\w+",
    "is a tool whose schema only Anthropic's models know; send it as a function with name and"
    " input_schema",
)


@decided(_ALL, "tools")
class Tool(Schema):
    """A function that the client runs."""

    type: Annotated[Literal["custom"] | None, _OF_SERVERS, _OF_MODELS] = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(Schema):
    """The functions that the answer may call. Only type `tool` has a `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@decided(_ALL, "thinking")
class Thinking(Schema):
    """Whether the model reasons, and its most reasoning tokens, which count as `max_tokens` too."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class OutputFormat(Schema):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


@decided(_ALL, "output_config")
class OutputConfig(Schema):
    """Format of the answer's text, and the reasoning effort, which some chat templates use."""

    format: OutputFormat | None = None
    effort: str | None = None


class Conversation(Schema):
    """The fields that both routes have."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_ITEMS), FIRST_FAULT]
    system: Content | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None


@decided(Api.COUNT)
class CountRequest(Conversation):
    """Body of `POST /v1/messages/count_tokens`."""


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STRING_LENGTH)]


@decided(Api.MESSAGES)
@offers(Api.MESSAGES)
class MessagesRequest(Conversation, SamplingSchema):
    """Body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), FIRST_FAULT] | None
    ) = None
    stream: bool | None = None
    open_schemas: bool | None = None
