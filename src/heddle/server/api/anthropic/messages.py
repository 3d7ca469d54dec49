"""Anthropic's API: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.

The answer continues a last message of the assistant.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.server.api.anthropic.schemas import (
    CountRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from heddle.server.api.anthropic.writer import MessageWriter
from heddle.server.generate.chat import bound_thinking, chat_request, effort_variables, joined
from heddle.server.generate.parameters import sampling_params
from heddle.server.generate.request import GenerationRequest
from heddle.server.generate.tools import function_of, use_of
from heddle.server.http.encoding import json_response
from heddle.server.http.hints import ignore, ignored
from heddle.server.http.schema import takes
from heddle.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.server.api.anthropic.schemas import AnyBlock, OutputConfig, Turn
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service
    from heddle.server.generate.tools import ToolUse
    from heddle.server.generate.usage import Json

_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": None}
"""Types of `tool_choice` to what OpenAI's API calls them."""
_ROLES = {ToolResultBlock: "user", ToolUseBlock: "assistant", ThinkingBlock: "assistant"}
"""Blocks that belong to messages of one role."""


class TokenCount(BaseModel):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    @router.post("/v1/messages", openapi_extra=takes(MessagesRequest))
    async def messages(request: Request) -> Response:
        """The next message of a conversation, as Anthropic's API has it."""
        translate = partial(from_messages, service=service, scope=request.scope)
        wanted, writer = await service.bodies.take(request, MessagesRequest, translate)
        return await dispatcher.answer(request, writer, wanted)

    @router.post(
        "/v1/messages/count_tokens", response_model=TokenCount, openapi_extra=takes(CountRequest)
    )
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation is."""
        count = partial(_count, service=service, scope=request.scope)
        tokens = await service.bodies.take(request, CountRequest, count)
        return json_response({"input_tokens": tokens})

    return router


def from_messages(
    body: MessagesRequest, service: Service, scope: Scope
) -> tuple[GenerationRequest, MessageWriter]:
    """The neutral request of a body, and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or they are too long for the context.
    """
    model = service.model_name(body.model)
    params = sampling_params(body, service, grammar=_grammar(body.output_config))
    use = _tool_use(body)
    request, reading = chat_request(
        service,
        GenerationRequest(model, (), params, stream=bool(body.stream)),
        use,
        lambda: _template_arguments(body, use, service, scope),
        open_schemas=body.open_schemas,
    )
    most = _thinking_budget(body, scope)
    request = bound_thinking(request, reading, most, "thinking.budget_tokens", service, scope)
    return request, MessageWriter(model, len(request.prompts[0]), reading)


def _count(body: CountRequest, service: Service, scope: Scope) -> int:
    service.model_name(body.model)
    arguments = _template_arguments(body, _tool_use(body), service, scope)
    return len(service.engine.model.chat_prompt(**arguments))


def _grammar(wanted: OutputConfig | None) -> Grammar | None:
    """What the text of the answer has to be.

    Raises:
        GrammarError: the schema is too long.
    """
    if wanted is None or wanted.format is None:
        return None
    return Grammar.json_schema(wanted.format.schema_, "output_config.format.schema")


def _tool_use(asked: CountRequest) -> ToolUse:
    """What functions the answer may call.

    Raises:
        InvalidRequestError: see `function_of` and `use_of`; or the choice names no function.
    """
    functions = [
        function_of(tool, tool.input_schema, f"tools[{place}].input_schema")
        for place, tool in enumerate(asked.tools or ())
    ]
    choice = asked.tool_choice
    if choice is None:
        return use_of(functions, None)
    if (choice.name is not None) != (choice.type == "tool"):
        needs = "needs" if choice.name is None else "takes no"
        raise InvalidRequestError(
            f"tool_choice of type {choice.type!r} {needs} tool_choice.name",
            param="tool_choice.name",
        )
    parallel = not choice.disable_parallel_tool_use
    return use_of(functions, _CHOICES[choice.type], named=choice.name, parallel=parallel)


def _template_arguments(asked: CountRequest, use: ToolUse, service: Service, scope: Scope) -> Json:
    """A body's messages and functions as keywords of `LoadedModel.chat_text`.

    Raises:
        InvalidRequestError: a block is in a message of the wrong role.
    """
    messages = [
        message for place, turn in enumerate(asked.messages) for message in _plain(turn, place)
    ]
    if asked.system:
        messages.insert(0, {"role": "system", "content": _text(asked.system)})
    wanted = asked.output_config.effort if asked.output_config else None
    effort = effort_variables(wanted, "output_config.effort", service.engine, scope)
    continues = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    return {
        "messages": messages,
        "tools": use.tools,
        "variables": _variables(asked, service, scope) | effort,
        "continue_final_message": continues,
        "add_generation_prompt": not continues,
    }


def _variables(asked: CountRequest, service: Service, scope: Scope) -> Json:
    """What a template is told about reasoning. A model that does not reason ignores the wish."""
    if asked.thinking is None:
        return {}
    template = service.engine.model.template
    wanted = asked.thinking.type != "disabled"
    if wanted and template is not None and template.dialect.marks is None:
        ignore(scope, "thinking")
    return {"enable_thinking": wanted}


def _thinking_budget(asked: CountRequest, scope: Scope) -> int | None:
    """The most tokens of reasoning; None if nothing bounds it, or if `thinking` is ignored."""
    if asked.thinking is None or "thinking" in ignored(scope):
        return None
    return asked.thinking.budget_tokens


def _plain(turn: Turn, place: int) -> list[Json]:
    """A turn as messages of OpenAI's API, in which what a call came to is a message of its own."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    for number, block in enumerate(turn.content):
        wanted = _ROLES.get(type(block), turn.role)
        if wanted != turn.role:
            path = f"messages[{place}].content[{number}]"
            raise InvalidRequestError(
                f"{path} of type {block.type!r} needs the role {wanted!r}, got {turn.role!r}",
                param=path,
            )
    messages: list[Json] = []
    for is_result, blocks in groupby(turn.content, lambda one: isinstance(one, ToolResultBlock)):
        group = list(blocks)
        messages += map(_result, group) if is_result else [_joined(turn.role, group)]
    return messages or [_joined(turn.role, [])]


def _joined(role: str, blocks: Sequence[AnyBlock]) -> Json:
    """A message of blocks that are no results."""
    message: Json = {"role": role, "content": _text(blocks)}
    if thoughts := [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": block.input},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return message | {"tool_calls": calls} if calls else message


def _result(block: AnyBlock) -> Json:
    assert isinstance(block, ToolResultBlock)
    content = "" if block.content is None else _text(block.content)
    if block.is_error:
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _text(content: str | Sequence[AnyBlock]) -> str:
    if isinstance(content, str):
        return content
    return joined(block.text for block in content if isinstance(block, TextBlock))
