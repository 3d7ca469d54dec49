"""Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

If the last message is the assistant's, the answer continues it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby, starmap
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.extensions.anthropic.schemas import (
    Conversation,
    CountRequest,
    ImageBlock,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from heddle.extensions.anthropic.writer import MessageWriter
from heddle.grammars import Grammar
from heddle.server.generate.chat import Chat, compose, content_of
from heddle.server.generate.parameters import sampling_params
from heddle.server.generate.reasoning import ReasoningFields
from heddle.server.generate.request import tokens_in
from heddle.server.generate.tools import Chosen, function_of, use_of
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.extensions.anthropic.schemas import (
        AnyBlock,
        Content,
        OutputConfig,
        ResultContent,
        Turn,
    )
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served, Service
    from heddle.server.generate.tools import ToolUse
    from heddle.server.generate.usage import Json

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""OpenAI's names for the types of `tool_choice`."""
_ROLES = {
    ImageBlock: "user",
    ToolResultBlock: "user",
    ToolUseBlock: "assistant",
    ThinkingBlock: "assistant",
}
"""Roles of the blocks that only messages of one role may have."""


class TokenCount(BaseModel):
    """Response of `POST /v1/messages/count_tokens`."""

    input_tokens: int


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    dispatcher.add_route(
        router,
        "/v1/messages",
        MessagesRequest,
        from_messages,
        "Generate the next message of a conversation, in the shape of Anthropic's API.",
    )

    @router.post(
        "/v1/messages/count_tokens", response_model=TokenCount, openapi_extra=takes(CountRequest)
    )
    async def count_tokens(request: Request) -> Response:
        """Count the prompt tokens of a conversation."""
        count = partial(_count, scope=request.scope)
        tokens = await service.take(request, CountRequest, count)
        return json_response({"input_tokens": tokens})

    return router


def from_messages(
    body: MessagesRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, MessageWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or the prompt is too long for the context.
    """
    params = sampling_params(body, served, grammar=_grammar(body.output_config))
    chat = replace(_chat(body), sampling=params, open_schemas=body.open_schemas)
    request, reading = compose(chat, served, scope, stream=bool(body.stream))
    return request, MessageWriter(served.name, len(tokens_in(request.prompts[0])), reading)


def _count(body: Conversation, served: Served, scope: Scope) -> int:
    chat = _chat(body)
    return len(tokens_in(chat.prompt(chat.text(served, scope), served)))


def _grammar(config: OutputConfig | None) -> Grammar | None:
    """The grammar of the answer's text.

    Raises:
        GrammarError: the schema is too long.
    """
    if config is None or config.format is None:
        return None
    return Grammar.json_schema(config.format.schema_, "output_config.format.schema")


def _tool_use(body: Conversation) -> ToolUse:
    """The functions that the answer may call.

    Raises:
        InvalidRequestError: a choice of type "tool" has no name, or a choice of another type has a
            name. See also `function_of` and `use_of`.
    """
    functions = [
        function_of(tool, tool.input_schema, f"tools[{place}].input_schema")
        for place, tool in enumerate(body.tools or ())
    ]
    choice = body.tool_choice
    if choice is None:
        return use_of(functions, None)
    if (choice.name is not None) != (choice.type == "tool"):
        needs = "needs" if choice.name is None else "cannot have"
        raise InvalidRequestError(
            f"tool_choice of type {choice.type!r} {needs} tool_choice.name",
            param="tool_choice.name",
        )
    parallel = not choice.disable_parallel_tool_use
    chosen = _CHOICES[choice.type] if choice.name is None else Chosen.function(choice.name)
    return use_of(functions, chosen, parallel=parallel)


def _chat(body: Conversation) -> Chat:
    """The chat of a body, with default sampling parameters.

    Raises:
        InvalidRequestError: a block is in a message of the wrong role; or see `_tool_use`.
    """
    messages = [
        message for place, turn in enumerate(body.messages) for message in _plain(turn, place)
    ]
    if body.system:
        messages.insert(0, {"role": "system", "content": _content(body.system, "system")})
    continues = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    return Chat(
        messages,
        tools=_tool_use(body),
        reasoning=_reasoning(body),
        continues=continues,
        opens_answer=not continues,
    )


def _reasoning(body: Conversation) -> ReasoningFields:
    """The reasoning fields of a body."""
    config, thinking = body.output_config, body.thinking
    return ReasoningFields(
        config.effort if config else None,
        "output_config.effort",
        thinking.type != "disabled" if thinking else None,
        "thinking",
        thinking.budget_tokens if thinking else None,
        "thinking.budget_tokens",
    )


def _plain(turn: Turn, place: int) -> list[Json]:
    """A turn as messages of OpenAI's API, where each result of a call is a separate message."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    for number, block in enumerate(turn.content):
        role = _ROLES.get(type(block), turn.role)
        if role != turn.role:
            path = f"messages[{place}].content[{number}]"
            raise InvalidRequestError(
                f"{path} of type {block.type!r} needs the role {role!r}, got {turn.role!r}",
                param=path,
            )
    messages: list[Json] = []
    path = f"messages[{place}].content"
    numbered = [(block, f"{path}[{number}]") for number, block in enumerate(turn.content)]
    for is_result, blocks in groupby(numbered, lambda one: isinstance(one[0], ToolResultBlock)):
        group = list(blocks)
        messages += starmap(_result, group) if is_result else [_joined(turn.role, group)]
    return messages or [_joined(turn.role, [])]


def _joined(role: str, blocks: Sequence[tuple[AnyBlock, str]]) -> Json:
    """A message made from blocks of text, pictures, reasoning and calls, each with its path."""
    message: Json = {"role": role, "content": _seen(blocks)}
    if thoughts := [block.thinking for block, _ in blocks if isinstance(block, ThinkingBlock)]:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": block.input},
        }
        for block, _ in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return message | {"tool_calls": calls} if calls else message


def _result(block: AnyBlock, path: str) -> Json:
    assert isinstance(block, ToolResultBlock)
    content = "" if block.content is None else _content(block.content, f"{path}.content")
    if block.is_error and isinstance(content, str):
        content = f"Error: {content}"
    elif block.is_error:
        content = [{"type": "text", "text": "Error: "}, *content]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _content(content: Content | ResultContent, path: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return _seen([(block, f"{path}[{number}]") for number, block in enumerate(content)])


def _seen(blocks: Sequence[tuple[AnyBlock, str]]) -> str | list[Json]:
    """The content of the texts and pictures among blocks."""
    return content_of(
        block.sent(path) if isinstance(block, ImageBlock) else block.text
        for block, path in blocks
        if isinstance(block, TextBlock | ImageBlock)
    )
