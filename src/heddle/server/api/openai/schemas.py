"""What clients may send to chat and text completions, after OpenAI's API reference.

Every field either works or is refused by name. Null means the default. Ranges of sampling fields
are checked once, by `SamplingParams`; here are types, and the fields that have another name there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag

from heddle.ranges import MAX_TOP_LOGPROBS
from heddle.server.http.fields import FIRST_FAULT, Prompt, Stop, Strings, TokenIds, only, shaped
from heddle.server.http.hints import ChatHints, Labels, LlamaCppHints
from heddle.types import MAX_STOP_TOKENS

MAX_CHOICES = 128
MAX_ITEMS = 8192
"""Messages, and parts of one. A body may hold 300,000, which would be seconds of work."""
MAX_TOOLS = 1024
"""Functions of a request, and calls of a message."""
MAX_BIASES = 16_384
"""Tokens of a logit bias, 100 bytes each, which stay for as long as the request does."""


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def takes(schema: type[Schema]) -> dict[str, Any]:
    """The OpenAPI entry of a route that reads its body, a `schema`, itself."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


class StreamOptions(Schema):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


class JsonSchemaFormat(Schema):
    """A schema and its labels. It is followed whether `strict` asks for it or not."""

    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Schema):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Schema):
    """What the answer has to be, as vLLM has it: one of the first five fields."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Strings, Field(max_length=MAX_ITEMS)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    disable_any_whitespace: Annotated[Any, only(False)] = None
    disable_additional_properties: Annotated[Any, only(False)] = None
    whitespace_pattern: Annotated[Any, only()] = None
    structural_tag: Annotated[Any, only()] = None


class SamplingRequest(Schema, Labels, LlamaCppHints):
    """What all endpoints of OpenAI's that generate take."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: list[str] | None = None
    min_tokens: int | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] | None = None
    logit_bias: (
        Annotated[
            dict[str, float],
            Field(
                max_length=MAX_BIASES,
                json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}},
            ),
        ]
        | None
    ) = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Strings, Field(max_length=MAX_ITEMS)] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    open_schemas: bool | None = None


class GenerationRequest(SamplingRequest):
    """What chats and completions of text take."""

    max_tokens: int | None = None
    n_predict: int | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: StreamOptions | None = None


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


class ChosenFunction(Schema):
    name: str


class FunctionChoice(Schema):
    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), FIRST_FAULT]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")]
    | Annotated[FunctionChoice, Tag("<dict>")],
    shaped("'none', 'auto', 'required' or an object that names a function"),
]


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


class Message(Schema):
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


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_ITEMS), FIRST_FAULT]


PromptLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class ChatRequest(GenerationRequest, ChatHints):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    suffix: str | None = None
