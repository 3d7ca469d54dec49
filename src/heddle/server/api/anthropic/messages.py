"""Anthropic's API: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.

A last message of the assistant is gone on with.
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
from heddle.server.api.anthropic.writer import MessageAnswer
from heddle.server.api.openai.completion_writers import AnswerOptions
from heddle.server.api.openai.schemas import takes
from heddle.server.generate.chat import chat_prompt, joined
from heddle.server.generate.request import Job, for_reading
from heddle.server.generate.tools import closing, function_of, suspects, use_of
from heddle.server.http.encoding import json_response
from heddle.server.http.hints import ignore
from heddle.types import Grammar, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.server.api.anthropic.schemas import AnyBlock, OutputConfig, Turn
    from heddle.server.api.openai.completion_writers import Json
    from heddle.server.generate.dispatch import Answering
    from heddle.server.generate.service import Service
    from heddle.server.generate.tools import ToolUse

_SAMPLING_FIELDS = (
    *("max_tokens", "temperature", "top_k", "top_p"),
    *("seed", "ignore_eos", "cache_salt"),
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": None}
"""Types of `tool_choice` to what OpenAI's API calls them."""
_ROLES = {ToolResultBlock: "user", ToolUseBlock: "assistant", ThinkingBlock: "assistant"}
"""Blocks that belong to messages of one role."""


class TokenCount(BaseModel):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    engine = service.engine

    def job(asked: MessagesRequest, scope: Scope) -> Job:
        model = service.model_name(asked.model)
        fields = {
            name: value for name in _SAMPLING_FIELDS if (value := getattr(asked, name)) is not None
        }
        stop, grammar = tuple(asked.stop_sequences or ()), _grammar(asked.output_config)
        params = SamplingParams(**fields, stop=stop, grammar=grammar)
        params, use = closing(params, _tool_use(asked), asked.open_schemas, service)
        singly = suspects(use)
        prompt, reading = chat_prompt(engine, _written(asked, use, service, scope), use)
        params = for_reading(params, use, reading, service)
        options = AnswerOptions(reading=reading)
        return Job(model, [prompt], params, 1, bool(asked.stream), options, singly)

    def count(asked: CountRequest, scope: Scope) -> int:
        service.model_name(asked.model)
        written = _written(asked, _tool_use(asked), service, scope)
        return len(engine.model.chat_prompt(**written))

    @router.post("/v1/messages", openapi_extra=takes(MessagesRequest))
    async def messages(request: Request) -> Response:
        """The next message of a conversation, as Anthropic's API has it."""
        digest = partial(job, scope=request.scope)
        wanted = await service.bodies.take(request, MessagesRequest, digest)
        writer = MessageAnswer(wanted.model, len(wanted.prompts[0]), wanted.options.reading)
        return await answering.answer(request, writer, wanted)

    @router.post(
        "/v1/messages/count_tokens", response_model=TokenCount, openapi_extra=takes(CountRequest)
    )
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation is."""
        digest = partial(count, scope=request.scope)
        tokens = await service.bodies.take(request, CountRequest, digest)
        return json_response({"input_tokens": tokens})

    return router


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


def _written(asked: CountRequest, use: ToolUse, service: Service, scope: Scope) -> Json:
    """The conversation as keywords of `LoadedModel.chat_text`.

    Raises:
        InvalidRequestError: a block is in a message of the wrong role.
    """
    messages = [
        message for place, turn in enumerate(asked.messages) for message in _plain(turn, place)
    ]
    if asked.system:
        messages.insert(0, {"role": "system", "content": _text(asked.system)})
    goes_on = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    return {
        "messages": messages,
        "tools": use.tools,
        "variables": _variables(asked, service, scope),
        "continue_final_message": goes_on,
        "add_generation_prompt": not goes_on,
    }


def _variables(asked: CountRequest, service: Service, scope: Scope) -> Json:
    """What a template is told about reasoning. A model that does not reason ignores the wish."""
    if asked.thinking is None:
        return {}
    template = service.engine.model.template
    wanted = asked.thinking.type != "disabled"
    if wanted and template is not None and template.dialect.marks is None:
        ignore(scope, "thinking")
    elif asked.thinking.budget_tokens is not None:
        ignore(scope, "thinking.budget_tokens")
    return {"enable_thinking": wanted}


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
