"""Function calls for models whose chat template does not know functions.

A system message describes the functions, in the form of Hermes. This module writes earlier calls
and their results as text in the same form, because the template would leave them out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Mapping[str, Any]

_INSTRUCTIONS = """\
# Functions

You can call functions to answer the user. Each line between <tools> and </tools> is one of them:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments as JSON between these two tags:
<tool_call>
{{"name": "<the function's name>", "arguments": {{"<a parameter>": <its value>}}}}
</tool_call>
What a call returns comes between <tool_response> and </tool_response>. Where no function helps, \
answer in words."""


def written_out(messages: Sequence[Json], tools: Sequence[Json]) -> Sequence[Json]:
    """The conversation as messages that contain only text. The first message describes `tools`."""
    written: list[dict[str, Any]] = []
    for before, message in zip([{}, *messages], messages, strict=False):
        if message["role"] == "tool":
            content = f"<tool_response>\n{message['content']}\n</tool_response>"
            if before.get("role") == "tool":
                content = f"{written.pop()['content']}\n{content}"
            written.append({"role": "user", "content": content})
        else:
            written.append(_with_calls(message))
    return with_instructions(written, _instructions(tools)) if tools else written


def with_instructions(messages: Sequence[Json], text: str) -> list[Json]:
    """The messages, with `text` in the system message at the start, after what it says."""
    first, *rest = messages
    if first["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]


def _with_calls(message: Json) -> dict[str, Any]:
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    content = [message["content"]] if message["content"] else []
    return plain | {"content": "\n".join(content + calls)}


def _instructions(tools: Sequence[Json]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _INSTRUCTIONS.format(tools=lines)
