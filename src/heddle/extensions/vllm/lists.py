"""What vLLM's routes for vectors have in common: inputs, and the frame of an answer."""

from __future__ import annotations

import secrets
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError
from heddle.extensions.vllm.truncation import prompt_limit
from heddle.server.generate.mixed_prompts import prompts_in, tokens_of
from heddle.server.generate.vectors import check_length, vectors

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.embedding import EmbeddingParams
    from heddle.server.generate.mixed_prompts import Prompts
    from heddle.server.generate.service import Served

MAX_INPUTS = 2048
"""Most texts of one request."""


def tokens_of_inputs(given: Prompts, served: Served, truncate: int | None) -> list[list[int]]:
    """The token ids of each text of `input`, without its end if `truncate_prompt_tokens` asks so.

    Raises:
        InvalidRequestError: there are too many, or one is empty or too long.
    """
    texts = prompts_in(given)
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(
            f"input has {len(texts)} texts; send at most {MAX_INPUTS} at a time", param="input"
        )
    prompts = [tokens_of(text, served.engine.model, "input") for text in texts]
    limit = prompt_limit(truncate, served)
    if limit is not None:
        prompts = [served.engine.model.tokenizer.shorten(one, limit) for one in prompts]
    for tokens in prompts:
        check_length(tokens, "input", served)
    return prompts


async def all_vectors(
    prompts: Sequence[Sequence[int]], params: EmbeddingParams, served: Served, scope: Scope
) -> list[array[float]]:
    """The vector of each prompt, in order."""
    async with aclosing(vectors(prompts, params, served, scope)) as ready:
        found = {index: vector async for index, vector in ready}
    return [found[index] for index in range(len(prompts))]


def framed(
    kind: str, model: str, prompts: Sequence[Sequence[int]], data: object
) -> dict[str, object]:
    """The answer of a route whose results are a list. Its id begins with `kind`."""
    tokens = sum(map(len, prompts))
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }
