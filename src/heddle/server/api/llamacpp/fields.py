"""Fields that `/completion` and `/infill` share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from heddle.parameters import MAX_TOP_LOGPROBS
from heddle.server.generate.fields import MAX_CHOICES, GenerationFields
from heddle.server.http.fields import FIRST_FAULT, only
from heddle.server.http.hints import hint
from heddle.server.http.schema import MAX_ITEMS


class NativeHints(BaseModel):
    """Fields of llama.cpp about its context shift and its cache. Heddle shifts no context."""

    n_keep: Annotated[int | None, hint(0, -1)] = None
    n_discard: Annotated[int | None, hint(0)] = None
    n_cache_reuse: Annotated[int | None, hint(0)] = None
    penalize_nl: Annotated[bool | None, hint(True)] = None


class NativeFields(GenerationFields, NativeHints):
    """Fields of `/completion` and `/infill`, besides the prompt."""

    n_probs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None

    post_sampling_probs: Annotated[
        Any, only(False, instead="n_probs gives probabilities before the samplers")
    ] = None
    min_keep: Annotated[Any, only(0, 1)] = None
    lora: Annotated[Any, only([])] = None
    stream_options: Annotated[Any, only({})] = None
