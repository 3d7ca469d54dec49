"""Earlier calls, in the shape that a form's templates take."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Json = Mapping[str, Any]


def with_objects(messages: Sequence[Json]) -> list[Json]:
    """The messages, with arguments as objects, for templates that write member by member.

    A call whose arguments are no object has them as a text under the name `arguments`.
    """
    return _with_arguments(
        messages, lambda given: given if isinstance(given, dict) else {"arguments": given}
    )


def with_texts(messages: Sequence[Json]) -> list[Json]:
    """The messages, with arguments as JSON, for templates that join them to other text."""
    return _with_arguments(
        messages,
        lambda given: given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
    )


def with_values(messages: Sequence[Json], change: Callable[[Any], Any]) -> list[Json]:
    """The messages, with `change` of each argument of calls whose arguments are objects."""
    return _with_arguments(messages, lambda given: {key: change(given[key]) for key in given})


def with_contents(messages: Sequence[Json], written: Callable[[Sequence[Json]], str]) -> list[Json]:
    """The messages, with calls as text after their contents, for templates that leave out calls.

    `written` returns the text of the functions and arguments of a message's calls.
    """

    def changed(message: Json) -> Json:
        text = written([call["function"] for call in message["tool_calls"]])
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**rest, "content": f"{message['content']}{text}"}

    return [changed(message) if message.get("tool_calls") else message for message in messages]


_ENCODES = re.compile(r"(?<![a-z])arg\w*(?:'\])?\s*\|\s*tojson")


def encodes_arguments(template: str) -> bool:
    """Whether a template itself encodes arguments as JSON, so that it takes objects."""
    return _ENCODES.search(template) is not None


def _with_arguments(messages: Sequence[Json], change: Callable[[Any], Any]) -> list[Json]:
    def changed(call: Json) -> Json:
        function = call["function"]
        return {**call, "function": {**function, "arguments": change(function["arguments"])}}

    return [
        {**message, "tool_calls": [changed(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]
