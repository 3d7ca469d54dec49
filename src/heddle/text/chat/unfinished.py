"""The prompt for a model that is to continue the last message.

The prompt ends where the last message ends: inside its reasoning if the message has no content.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.text.chat.dialect import Dialect

    Json = Mapping[str, Any]


class Render(Protocol):
    """Renders messages with a chat template. `opens`: end with the beginning of an answer."""

    def __call__(self, messages: Sequence[Json], /, *, opens: bool) -> str: ...


def render_unfinished(render: Render, messages: Sequence[Json], dialect: Dialect) -> str:
    """The prompt for `messages` if the model is to continue the last message.

    A template writes an end mark after each message, and may trim its content. So this function
    renders a random mark in place of the content, cuts the prompt at the mark, and appends the
    content unchanged.

    Args:
        render: the template.
        messages: in the form of OpenAI's API, but with arguments of calls as objects.
        dialect: the template's.

    Raises:
        InvalidRequestError: as for `render`; or the template does not show the last message; or the
            last message has calls, which templates write after the content; or its reasoning
            cannot be continued.
    """
    last = messages[-1]
    if last.get("tool_calls"):
        raise _refused(
            "cannot continue a last message that has tool_calls; append the tool results or remove"
            " the calls"
        )
    thoughts = last.get("reasoning_content")
    if thoughts and not last["content"]:
        return _before_thoughts(render, messages, dialect) + str(thoughts)
    head = _before(render, messages, "content")
    if head is None:
        raise _refused(
            "cannot continue the last message: the model's chat template does not show it; end the"
            " messages with a user message"
        )
    return head + str(last["content"])


def _before_thoughts(render: Render, messages: Sequence[Json], dialect: Dialect) -> str:
    """The prompt up to the reasoning of the last message, whose reasoning is open.

    Raises:
        InvalidRequestError: see `render_unfinished`.
    """
    marks, advice = dialect.marks, "give the last message a content, or remove it"
    if marks is None:
        raise _refused(
            "cannot continue the reasoning of the last message: the model's chat template shows no"
            f" marks of reasoning; {advice}"
        )
    if marks.closing in messages[-1]["reasoning_content"]:
        raise _refused(
            f"cannot continue the reasoning of the last message: it has the text {marks.closing!r},"
            f" which ends reasoning; {advice}"
        )
    try:
        head = _before(render, messages, "reasoning_content")
    except InvalidRequestError:
        head = None  # some templates refuse an answer without content
    if head is not None and head.rstrip().endswith(marks.opening):
        return head
    # The template does not show the reasoning of an earlier answer. It asks for this answer anew.
    head = render(messages[:-1], opens=True)
    reading = dialect.reading(head)
    if reading.reasons:
        return head
    if reading.marks is None:
        raise _refused(
            "cannot continue the reasoning of the last message, because reasoning is off; turn it"
            f" on, {advice}"
        )
    # A mark that ends with a word, such as Gemma 4's `thought`, has a line of its own.
    return head + marks.opening + ("" if marks.opening.endswith((">", "]")) else "\n")


def _before(render: Render, messages: Sequence[Json], field: str) -> str | None:
    """The prompt up to a field of the last message; None if the template does not show it."""
    mark = f"<{secrets.token_hex(16)}>"
    marked = [*messages[:-1], {**messages[-1], field: mark}]
    head, found, _ = render(marked, opens=False).rpartition(mark)
    return head if found else None


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")
