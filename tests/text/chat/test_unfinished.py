"""Prompts that end inside the last message, for an answer that continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import templates
from heddle.errors import InvalidRequestError
from heddle.text.chat.template import ChatTemplate
from heddle.text.chat.unfinished import render_unfinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASKED = {"role": "user", "content": "Hi"}
CUT = {"role": "assistant", "content": "", "reasoning_content": "Hm, "}
SHOWS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content | trim }}\n</think>\n{% endif %}"
    "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HIDES = SHOWS.replace("<think>\n{{ m.reasoning_content | trim }}\n</think>\n", "")


def rendered(source: str, *messages: Mapping[str, Any], **variables: Any) -> str:
    """The prompt for an answer that continues the last message."""
    template = ChatTemplate(source, "", "")

    def render(messages: Sequence[Mapping[str, Any]], *, opens: bool) -> str:
        written, _ = template.dialect.conversation(messages, ())
        return template.render(written, add_generation_prompt=opens, **variables)

    return render_unfinished(render, messages, template.dialect)


def test_a_continued_message_ends_with_its_content() -> None:
    source = SHOWS.replace("m.content", "m.content | trim")
    begun = {"role": "assistant", "content": "a b "}
    asked = {"role": "user", "content": "a b "}
    assert rendered(source, asked, begun) == "<user>a b</s><assistant>a b "
    assert rendered("{{ messages[-1].content }}", asked, begun) == "a b "
    with pytest.raises(InvalidRequestError, match="template does not show it"):
        rendered("{{ messages[0].content }}", asked, begun)
    calls = begun | {"tool_calls": [{"function": {"name": "f"}}]}
    with pytest.raises(
        InvalidRequestError, match="cannot continue a last message that has tool_calls"
    ):
        rendered(source, asked, calls)


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (SHOWS, "<assistant><think>\nHm, "),
        (HIDES + "{# </think> #}", "<assistant><think>Hm, "),
        (HIDES.replace("<assistant>", "<assistant><think>\n") + "{# </think> #}", "<think>\nHm, "),
        (HIDES + "{# <channel|> #}", "<assistant><|channel>thought\nHm, "),
        (HIDES + "{# [/THINK] #}", "<assistant>[THINK]Hm, "),
        (
            "{% if not messages[-1].content %}{{ raise_exception('empty') }}{% endif %}"
            + HIDES
            + "{# </think> #}",
            "<user>Hi</s><assistant><think>Hm, ",
        ),
    ],
    ids=["shown", "hidden", "opened", "a word", "a tag", "refused without content"],
)
def test_a_continued_message_without_content_ends_inside_its_reasoning(
    source: str, end: str
) -> None:
    assert rendered(source, ASKED, CUT).endswith(end)


def test_an_answer_with_content_is_continued_after_its_reasoning() -> None:
    begun = CUT | {"content": "So"}
    assert rendered(SHOWS, ASKED, begun).endswith("<think>\nHm,\n</think>\nSo")


def test_reasoning_that_cannot_be_continued_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="template shows no marks of reasoning"):
        rendered(templates.CHATML, ASKED, CUT)
    closed = CUT | {"reasoning_content": "Hm.</think>So"}
    with pytest.raises(InvalidRequestError, match="'</think>', which ends reasoning"):
        rendered(SHOWS, ASKED, closed)
    with pytest.raises(InvalidRequestError, match="because reasoning is off"):
        rendered(templates.QWEN3, ASKED, CUT, enable_thinking=False)
