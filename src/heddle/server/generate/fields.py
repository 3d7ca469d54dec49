"""Fields that bodies of several APIs have: sampling parameters, and forms of the answer.

Every field either works or is refused by name. Null means the default. `SamplingParams` checks the
ranges of sampling fields once; here are types, and the fields that have another name there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from heddle.server.http.fields import Stop, Strings, TokenIds, only
from heddle.server.http.hints import hint
from heddle.server.http.schema import MAX_ITEMS, Schema
from heddle.types import MAX_BAD_WORDS, MAX_BREAKERS, MAX_STOP_TOKENS, Stage

MAX_CHOICES = 128
MAX_BIASES = 16_384
"""Tokens of a logit bias, 100 bytes each, which stay for as long as the request does."""

Tier = Literal["auto", "default", "flex", "scale", "priority", "standard_only"]


class Labels(BaseModel):
    """OpenAI's: bookkeeping, caches and prices."""

    user: Annotated[str | None, hint()] = None
    metadata: Annotated[dict[str, str] | None, hint()] = None
    safety_identifier: Annotated[str | None, hint()] = None
    prompt_cache_key: Annotated[str | None, hint()] = None
    prompt_cache_retention: Annotated[str | None, hint("in_memory", "in-memory")] = None
    service_tier: Annotated[Tier | None, hint("auto", "default")] = None
    store: Annotated[bool | None, hint(False)] = None


class LlamaCppHints(BaseModel):
    """llama.cpp's: slots, its cache, and times that end a prompt or an answer early."""

    cache_prompt: Annotated[bool | None, hint(True)] = None
    id_slot: Annotated[int | None, hint(-1)] = None
    t_max_prompt_ms: Annotated[float | None, hint(-1, 0)] = None
    t_max_predict_ms: Annotated[float | None, hint(-1, 0)] = None
    n_indent: Annotated[int | None, hint(0)] = None
    timings_per_token: Annotated[bool | None, hint(False)] = None
    response_fields: Annotated[list[str] | None, hint([])] = None


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


class SamplingFields(Schema, Labels, LlamaCppHints):
    """Fields of every endpoint that generates, Anthropic's apart."""

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
    dry_sequence_breakers: Annotated[Strings, Field(max_length=MAX_BREAKERS)] | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: Annotated[Strings, Field(max_length=len(Stage))] | None = None
    min_tokens: int | None = None
    bad_words: Annotated[Strings, Field(max_length=MAX_BAD_WORDS)] | None = None
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


class GenerationFields(SamplingFields):
    """Fields of chat completions, text completions and infill."""

    max_tokens: int | None = None
    n_predict: int | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: StreamOptions | None = None
