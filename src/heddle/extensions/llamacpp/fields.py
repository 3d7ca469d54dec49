"""Fields that `/completion` and `/infill` share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heddle.parameters import MAX_LOGPROBS
from heddle.server.generate.fields import MAX_CHOICES, GenerationFields
from heddle.server.http.fields import FIRST_FAULT
from heddle.server.http.schema import MAX_ITEMS


class NativeFields(GenerationFields):
    """Fields of `/completion` and `/infill`, besides the prompt."""

    n_probs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    post_sampling_probs: bool | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
