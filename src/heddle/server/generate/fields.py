"""Fields that several APIs share, besides the sampling parameters (`parameters.py`).

The server supports a field or refuses it by name. Null means the default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from heddle.server.generate.parameters import SamplingSchema
from heddle.server.http.fields import Strings, only
from heddle.server.http.hints import hint
from heddle.server.http.schema import MAX_ITEMS, Schema

MAX_CHOICES = 128

Tier = Literal["auto", "default", "flex", "scale", "priority", "standard_only"]


class Labels(BaseModel):
    """Fields of OpenAI's API for bookkeeping, caches and prices."""

    user: Annotated[str | None, hint()] = None
    metadata: Annotated[dict[str, str] | None, hint()] = None
    safety_identifier: Annotated[str | None, hint()] = None
    prompt_cache_key: Annotated[str | None, hint()] = None
    prompt_cache_retention: Annotated[str | None, hint("in_memory", "in-memory")] = None
    service_tier: Annotated[Tier | None, hint("auto", "default")] = None
    store: Annotated[bool | None, hint(False)] = None


class LlamaCppHints(BaseModel):
    """Fields of llama.cpp for slots, its cache, and time limits of prompts and answers."""

    cache_prompt: Annotated[bool | None, hint(True)] = None
    id_slot: Annotated[int | None, hint(-1)] = None
    t_max_prompt_ms: Annotated[float | None, hint(-1.0, 0.0)] = None
    t_max_predict_ms: Annotated[float | None, hint(-1.0, 0.0)] = None
    n_indent: Annotated[int | None, hint(0)] = None
    timings_per_token: Annotated[bool | None, hint(False)] = None
    response_fields: Annotated[list[str] | None, hint([])] = None


class StreamOptions(Schema):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


class JsonSchemaFormat(Schema):
    """A schema and its labels. The output follows the schema, also without `strict`."""

    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Schema):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Schema):
    """vLLM's constraint on the answer: exactly one of the first five fields."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Strings, Field(max_length=MAX_ITEMS)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    disable_any_whitespace: Annotated[Any, only(False)] = None
    disable_additional_properties: Annotated[Any, only(False)] = None
    whitespace_pattern: Annotated[Any, only()] = None
    structural_tag: Annotated[Any, only()] = None


class SamplingFields(SamplingSchema, Labels, LlamaCppHints):
    """Fields of every route that generates, except the routes of Anthropic's API."""

    model: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Strings, Field(max_length=MAX_ITEMS)] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    open_schemas: bool | None = None


class GenerationFields(SamplingFields):
    """Fields of chat completions, text completions and infill."""

    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: StreamOptions | None = None
