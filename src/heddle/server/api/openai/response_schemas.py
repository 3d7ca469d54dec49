"""What clients may send to `/v1/responses`, after OpenAI's API reference.

Nothing is stored between requests, so that fields which refer to what was stored are refused. The
sampling fields are those of the other endpoints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from heddle.parameters import MAX_TOP_LOGPROBS, Api
from heddle.server.generate.chat_fields import MAX_TOOLS, FunctionName
from heddle.server.generate.fields import SamplingFields
from heddle.server.generate.parameters import offers
from heddle.server.http.fields import FIRST_FAULT, UNSUPPORTED, only, shaped
from heddle.server.http.hints import hint
from heddle.server.http.schema import MAX_ITEMS, Schema

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
    | Annotated[list[TextPart], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")]
    | Annotated[list[TextPart], Tag("<list>")],
    shaped("a string or a list of parts of type input_text or output_text"),
]


class Item(Schema):
    """What all items may have: labels of an earlier answer's."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(Item):
    """A message, be it written for the purpose or the item of an earlier answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Annotated[Any, only("final_answer")] = None


class CallItem(Item):
    """A call that the model has asked for."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Item):
    """What has come of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningText(Schema):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Item):
    """What the model has said to itself. Some templates tell it that again."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    summary: Annotated[Any, only([])] = None
    encrypted_content: Annotated[Any, only()] = None


def _type_of(item: object) -> str:
    """Tag of an item: its type, which a message may leave out."""
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


class FunctionTool(Schema):
    """A function that may be called. Without `parameters` it has none."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Schema):
    type: Literal["function"]
    name: str


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")]
    | Annotated[FunctionChoice, Tag("<dict>")],
    shaped("'none', 'auto', 'required' or an object that names a function"),
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
    verbosity: Annotated[str | None, hint("medium", path="text.verbosity")] = None


class StreamOptions(Schema):
    include_obfuscation: Annotated[Any, only(False)] = None


class ReasoningConfig(Schema):
    """`effort` is for templates that ask for it."""

    effort: str | None = None
    summary: Annotated[str | None, hint(path="reasoning.summary")] = None
    generate_summary: Annotated[str | None, hint(path="reasoning.generate_summary")] = None


LOGPROBS = "message.output_text.logprobs"
"""What `include` asks for to get log probabilities."""

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
"""What an answer is to have in it besides. All but log probabilities belong to what is not here."""

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ResponseHints(BaseModel):
    """OpenAI's."""

    context_management: Annotated[list[Any] | None, hint([])] = None


@offers(Api.RESPONSES)
class ResponsesRequest(SamplingFields, ResponseHints):
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
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), FIRST_FAULT] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    max_tool_calls: Annotated[Any, only()] = None
    previous_response_id: Annotated[Any, only(instead=_ALL_OF_IT)] = None
    conversation: Annotated[Any, only(instead=_ALL_OF_IT)] = None
    background: Annotated[Any, only(False)] = None
    truncation: Annotated[Any, only("disabled")] = None
    prompt: Annotated[Any, only()] = None
    response_format: Annotated[Any, only(instead="send it as text.format")] = None

    @property
    def form(self) -> TextFormat | None:
        """What the output has to be, if the request says so."""
        return None if self.text is None else self.text.format
