"""Cuts texts at their end: `max_tokens_per_doc`, `truncate_prompt_tokens`, and TEI's `truncate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from heddle.errors import InvalidRequestError
from heddle.server.generate.vectors import check_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.server.generate.service import Served

TruncatePromptTokens = Annotated[
    Annotated[int, Field(ge=-1, le=2**31 - 1)] | None,
    Field(description="most tokens of a prompt, which loses its end; -1: all that fit"),
]
MaxTokensPerDoc = Annotated[
    Annotated[int, Field(ge=0, le=2**31 - 1)] | None,
    Field(description="most tokens of a document, which loses its end; 0: no limit of its own"),
]


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens may stay of a prompt and of its document. None: all.

    A prompt that is still too long for the model is an error.
    """

    prompt: int | None = None
    document: int | None = None


def prompt_limit(asked: int | None, served: Served) -> int | None:
    """Most tokens of a prompt by `truncate_prompt_tokens`: -1 stands for all that the model takes.

    Raises:
        InvalidRequestError: it is 0.
    """
    if asked == 0:
        raise InvalidRequestError(
            "truncate_prompt_tokens is 0, which leaves nothing; send -1 for all tokens that fit",
            param="truncate_prompt_tokens",
        )
    engine = served.engine
    most = min(engine.context, engine.config.max_prompt_tokens or engine.context)
    return asked if asked is None else most if asked == -1 else min(asked, most)


def prompts_of_pairs(
    pairs: Sequence[tuple[str, str]],
    served: Served,
    room: Room,
    param: str,
    instruction: str | None = None,
) -> list[list[int]]:
    """The judge's prompt for each query and document. `param` is the field with the documents.

    Documents are cut, and queries never.

    Raises:
        InvalidRequestError: a document is too long and may not be cut, a query leaves no room for
            one, or the model cannot judge documents.
    """
    judge = served.engine.model.judge()

    @cache
    def bare(query: str) -> int:
        return len(judge.prompt(query, "", instruction))

    def cut(query: str, document: str) -> list[int]:
        limit = room.prompt
        if limit is not None and bare(query) + bool(document) > limit:
            raise InvalidRequestError(
                f"the query takes {bare(query)} tokens of a prompt, which may have {limit}, and"
                " leaves no room for a document; shorten the query",
                param="query",
            )
        tokens = judge.prompt(query, document, instruction)
        limit = len(tokens) if limit is None else limit
        if room.document:
            limit = min(limit, bare(query) + room.document)
        return judge.shorten(tokens, limit)

    prompts = []
    for query, document in pairs:
        prompts.append(cut(query, document))
        check_length(prompts[-1], param, served)
    return prompts
