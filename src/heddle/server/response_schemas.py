"""What clients may send to `/v1/responses`, after OpenAI's API reference.

Nothing is stored between requests, so that fields which refer to what was stored are refused. The
sampling fields are those of the other endpoints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from heddle.server.fields import FIRST_FAULT, only, shaped
from heddle.server.schemas import MAX_ITEMS, SamplingRequest, Schema
from heddle.types import MAX_TOP_LOGPROBS

_ALL_OF_IT = "nothing is stored here, so send the whole conversation as `input`"


class TextPart(Schema):
    """Text of a message. What an answer had beside it may come back with it."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[Any, only([])] = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


Content = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[list[TextPart], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")],
    shaped("a string or a list of parts of type input_text or output_text"),
]


class MessageItem(Schema):
    """A message, be it written for the purpose or the item of an earlier answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Annotated[Any, only("final_answer")] = None


Input = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[
        list[MessageItem],
        Field(min_length=1, max_length=MAX_ITEMS),
        FIRST_FAULT,
        Tag("<list of dict>"),
    ],
    shaped("a string or a list of items"),
]


class TextFormat(Schema):
    """A form and its labels. A schema is followed whether `strict` asks for it or not."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Schema):
    """What the output has to be."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, only("medium")] = None


class StreamOptions(Schema):
    include_obfuscation: Annotated[Any, only(False)] = None


class ReasoningConfig(Schema):
    effort: Annotated[Any, only()] = None
    summary: Annotated[Any, only()] = None
    generate_summary: Annotated[Any, only()] = None


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ResponsesRequest(SamplingRequest):
    """Body of `POST /v1/responses`."""

    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], FIRST_FAULT] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    stream_options: StreamOptions | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, only(False, True)] = None
    max_tool_calls: Annotated[Any, only()] = None
    store: Annotated[Any, only(False, instead=_ALL_OF_IT)] = None
    previous_response_id: Annotated[Any, only(instead=_ALL_OF_IT)] = None
    conversation: Annotated[Any, only(instead=_ALL_OF_IT)] = None
    background: Annotated[Any, only(False)] = None
    truncation: Annotated[Any, only("disabled")] = None
    context_management: Annotated[Any, only([])] = None
    prompt: Annotated[Any, only()] = None
    prompt_cache_retention: Annotated[Any, only("in_memory")] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    @property
    def form(self) -> TextFormat | None:
        """What the output has to be, if the request says so."""
        return None if self.text is None else self.text.format
