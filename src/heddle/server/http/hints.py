"""Hints: fields that cannot make an answer wrong, and have no effect here.

They ask for speed, price, effort, storage or bookkeeping. Agents and editors send them whatever the
server is, so each is accepted, and named in the answer's `x-heddle-ignored` header. A field that
constrains the answer is never a hint: it works, or it is refused by name (`lenient.py`).

The classes below are the table of hints. A body takes those of the classes that it inherits:

| class | /v1/chat/completions | /v1/completions | /v1/responses | /infill | /v1/messages |
|---|---|---|---|---|---|
| `Labels`, `LlamaCppHints` | yes | yes | yes | yes | |
| `ChatHints` | yes | | | | |
| `ResponseHints` | | | yes | | |
| `MessageHints` | | | | | yes |

Hints inside of objects (`text.verbosity`, `output_config.effort`, `tools.defer_loading`) are
declared where these objects are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ValidationInfo
from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-heddle-ignored"

_IGNORED = "heddle.ignored_fields"
"""Where a request's ASGI scope has the names of fields that had no effect."""


def hint(*neutral: object, path: str = "") -> AfterValidator:
    """Note the field as ignored, unless its value is null or asks for what is done anyway.

    `path` is the field's name from the body's top, where that is not its own name.
    """

    def note(value: object, info: ValidationInfo) -> object:
        # Types are compared too: in Python False == 0 and True == 1.
        asks = value is not None and not any(
            type(value) is type(ok) and value == ok for ok in neutral
        )
        if asks and info.context is not None:
            info.context.append(path or info.field_name)
        return value

    return AfterValidator(note)


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


class ChatHints(BaseModel):
    """OpenAI's, and what LiteLLM makes of Anthropic's."""

    reasoning_effort: Annotated[str | None, hint()] = None
    thinking: Annotated[dict[str, Any] | None, hint()] = None
    verbosity: Annotated[str | None, hint("medium")] = None
    prediction: Annotated[dict[str, Any] | None, hint()] = None


class ResponseHints(BaseModel):
    """OpenAI's."""

    context_management: Annotated[list[Any] | None, hint([])] = None


class MessageHints(BaseModel):
    """Anthropic's."""

    context_management: Annotated[dict[str, Any] | None, hint({})] = None


def ignore(scope: Scope, name: str) -> None:
    """Note one more field of a request that had no effect, besides those that validation finds."""
    scope[_IGNORED].append(name)


def ignored(scope: Scope) -> list[str]:
    """The list of these names, to be given to validation as its context."""
    names: list[str] = scope[_IGNORED]
    return names


class TellIgnored:
    """Adds the header to answers whose request had fields without effect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        names: list[str] = []

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and names:
                MutableHeaders(scope=message)[HEADER] = ", ".join(dict.fromkeys(names))
            await send(message)

        await self._app({**scope, _IGNORED: names}, receive, send_with_header)
