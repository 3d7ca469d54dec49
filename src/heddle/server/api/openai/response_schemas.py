"""Schemas of `/v1/responses`, after OpenAI's API reference.

The server stores nothing between requests, so it refuses fields that refer to stored content. The
sampling fields are the same as in the other routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, ValidationInfo

from heddle.errors import InvalidRequestError
from heddle.parameters import MAX_TOP_LOGPROBS, Api
from heddle.sent_pictures import SentPicture
from heddle.server.generate.chat_fields import (
    MAX_TOOLS,
    FunctionName,
    ReasoningConfig,
    ToolChoice,
    tag_of_part,
)
from heddle.server.generate.fields import SamplingFields
from heddle.server.generate.parameters import offers
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, UNSUPPORTED, shaped, unserved
from heddle.server.http.hints import SLOW, hint
from heddle.server.http.schema import MAX_ITEMS, Schema


@decided(Api.RESPONSES, "input.content")
class TextPart(Schema):
    """Text of a message. A client may send back the other fields of an answer's text."""

    type: Literal["input_text", "output_text"]
    text: str
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


@decided(Api.RESPONSES, "input.content")
class ImagePart(Schema):
    """A picture of a message: a data URL or an address."""

    type: Literal["input_image"]
    image_url: Annotated[str, SLOW] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None

    def sent(self, path: str) -> SentPicture:
        """The picture of this part, whose field is `path`.

        Raises:
            InvalidRequestError: it has none.
        """
        if self.image_url is None:
            raise InvalidRequestError(
                f"missing required parameter: {path}.image_url", param=f"{path}.image_url"
            )
        return SentPicture(self.image_url, f"{path}.image_url")


_Part = Annotated[
    Annotated[TextPart, Tag("<words>")] | Annotated[ImagePart, Tag("<input_image>")],
    tag_of_part("input_image"),
]
Content = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[list[_Part], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")]
    | Annotated[list[_Part], Tag("<list>")],
    shaped("a string or a list of parts of type input_text, output_text or input_image"),
]


class Item(Schema):
    """The fields that all items may have. They come from an earlier answer."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


@decided(Api.RESPONSES, "input.message")
class MessageItem(Item):
    """A message, also one from an earlier answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(Item):
    """A call from an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningText(Schema):
    type: Literal["reasoning_text"]
    text: str


@decided(Api.RESPONSES, "input.reasoning")
class ReasoningItem(Item):
    """Reasoning from an earlier answer. Some chat templates write it into the prompt."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None


def _type_of(item: object) -> str:
    """The tag of an item: its type. A message may leave out its type."""
    return f"<{item.get('type') or 'message'}>" if isinstance(item, dict) else "<none>"


AnyItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(
        _type_of,
        custom_error_type=UNSUPPORTED,
        custom_error_message="is not supported by this server (items are of type message,"
        " function_call, function_call_output or reasoning)",
    ),
]

Input = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[
        list[AnyItem],
        Field(min_length=1, max_length=MAX_ITEMS),
        FIRST_FAULT,
        Tag("<list of dict>"),
    ],
    shaped("a string or a list of items"),
]


_OF_SERVERS = unserved(
    r"file_search|code_interpreter|mcp|computer_use_preview|computer",
    "is a tool of OpenAI's servers and models, and this server has none; leave it out, or send a"
    " function that your program runs",
)


@decided(Api.RESPONSES, "tools")
class FunctionTool(Schema):
    """A function that the model may call. Without `parameters` it has no arguments."""

    type: Annotated[Literal["function"], _OF_SERVERS]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


_HOSTED = ("web_search", "web_search_preview", "image_generation", "namespace", "tool_search")
"""Tools that the server leaves out: a model without them answers in another way. Codex sends them
with every request."""


def _note_tool(kind: str, info: ValidationInfo) -> str:
    if info.context is not None:
        info.context.ignored.append(f"tools ({kind})")
    return kind


class HostedTool(BaseModel):
    """A tool that this server does not have. It is ignored, whatever its fields are."""

    type: Annotated[str, AfterValidator(_note_tool)]


def _tag_of_tool(value: object) -> str:
    return "<hosted>" if isinstance(value, dict) and value.get("type") in _HOSTED else "<function>"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[HostedTool, Tag("<hosted>")],
    Discriminator(_tag_of_tool),
]


class TextFormat(Schema):
    """A format and its labels. The output follows a schema, also without `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@decided(Api.RESPONSES, "text")
class TextConfig(Schema):
    """The format of the output."""

    format: TextFormat | None = None


@decided(Api.RESPONSES, "stream_options")
class StreamOptions(Schema):
    """Options of a stream."""


LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that requests log probabilities."""

Included = Annotated[
    Literal[
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    ],
    hint(LOGPROBS, path="include"),
]
"""Further content of an answer. This server has only the log probabilities."""

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


@decided(Api.RESPONSES)
@offers(Api.RESPONSES)
class ResponsesRequest(SamplingFields):
    """Body of `POST /v1/responses`."""

    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Included], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    stream_options: StreamOptions | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def functions(self) -> list[tuple[int, FunctionTool]]:
        """The functions in `tools`, each with its place there."""
        tools = enumerate(self.tools or ())
        return [(place, tool) for place, tool in tools if isinstance(tool, FunctionTool)]

    @property
    def form(self) -> TextFormat | None:
        """The format of the output; None: any text."""
        return None if self.text is None else self.text.format
