"""Turns the items of a `/v1/responses` body into the messages that chat templates expect.

A turn of the assistant has several items: reasoning, a message and calls. They become one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.server.api.openai.response_schemas import (
    CallItem,
    CallOutputItem,
    ImagePart,
    MessageItem,
)
from heddle.server.generate.chat import call_for_template, content_of
from heddle.server.generate.tools import function_of, use_of

if TYPE_CHECKING:
    from heddle.server.api.openai.response_schemas import Content, ResponsesRequest
    from heddle.server.generate.tools import ToolUse

Json = dict[str, Any]


def tool_use(body: ResponsesRequest) -> ToolUse:
    """The functions that the answer may call.

    Raises:
        InvalidRequestError: see `function_of` and `use_of`.
    """
    functions = [
        function_of(tool, tool.parameters, f"tools[{place}].parameters")
        for place, tool in body.functions
    ]
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    chosen = choice if choice is None or isinstance(choice, str) else choice.chosen
    return use_of(functions, chosen, parallel=parallel)


def messages_of(body: ResponsesRequest) -> list[Json]:
    """The messages of a body's items.

    Raises:
        InvalidRequestError: a part of type input_image has no picture.
    """
    messages: list[Json] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    reasoning = ""
    for place, item in enumerate(body.input):
        path = f"input[{place}]"
        if isinstance(item, MessageItem):
            content = _content(item.content, f"{path}.content")
            messages.append({"role": item.role, "content": content})
        elif isinstance(item, CallOutputItem):
            output = _content(item.output, f"{path}.output")
            messages.append({"role": "tool", "content": output, "tool_call_id": item.call_id})
        elif isinstance(item, CallItem):
            _add_call(messages, item, continues=not reasoning)
        else:
            reasoning += "".join(part.text for part in item.content or ())
            continue
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    return messages


def _add_call(messages: list[Json], call: CallItem, *, continues: bool) -> None:
    """Add a call to the last message if it is the assistant's, else to a new message."""
    if not (continues and messages and messages[-1]["role"] == "assistant"):
        messages.append({"role": "assistant", "content": ""})
    rendered = call_for_template(call.call_id, call.name, call.arguments)
    messages[-1].setdefault("tool_calls", []).append(rendered)


def _content(content: Content, path: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return content_of(
        part.sent(f"{path}[{place}]") if isinstance(part, ImagePart) else part.text
        for place, part in enumerate(content)
    )
