"""Fields that several APIs share, besides the sampling parameters (`parameters.py`).

The table of vendors' fields (`vendor_fields/table.py`) adds the ignored and the refused fields.
Null means the default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heddle.parameters import Api
from heddle.server.generate.constraint_field import constrained, with_formats
from heddle.server.generate.parameters import SamplingSchema
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.schema import Schema

MAX_CHOICES = 128


@decided(Api.CHAT | Api.COMPLETIONS, "stream_options")
class StreamOptions(Schema):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(Schema):
    """A schema and its labels. The output follows the schema, also without `strict`."""

    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@with_formats
class ResponseFormat(Schema):
    """OpenAI's formats, `schema` as in llama.cpp, and the formats of extensions."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


@constrained
class SamplingFields(SamplingSchema):
    """Fields of every route that generates, except the routes of Anthropic's API."""

    model: str | None = None
    stream: bool | None = None
    open_schemas: bool | None = None


class GenerationFields(SamplingFields):
    """Fields of chat completions, text completions and infill."""

    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
