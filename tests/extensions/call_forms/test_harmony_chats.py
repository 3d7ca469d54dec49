"""Chats with gpt-oss in the library and in the terminal: no marks, no reasoning in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import templates
from heddle import LLM, SamplingParams
from heddle.cli.chat import Conversation
from talking_model import talking_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.engine import Engine
    from talking_model import TalkingExecutor

ANSWER = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
PARAMS = SamplingParams(seed=0, max_tokens=90)


@pytest.fixture
def talking() -> Iterator[tuple[Engine, TalkingExecutor]]:
    with talking_engine(templates.HARMONY) as (engine, executor):
        executor.answers = [ANSWER]
        yield engine, executor


def test_the_library_gives_the_text_of_a_chat(talking: tuple[Engine, TalkingExecutor]) -> None:
    engine, _ = talking
    llm = LLM(engine)
    asked = [{"role": "user", "content": "Is it?"}]
    assert llm.chat(asked, PARAMS).text == "Yes."
    assert llm.chat(asked, SamplingParams(seed=0, max_tokens=20)).text == ""


def test_a_conversation_shows_reasoning_before_text(
    talking: tuple[Engine, TalkingExecutor],
) -> None:
    engine, executor = talking
    conversation = Conversation(engine, PARAMS, None)
    assert "".join(conversation.answer("Is it?")) == "Hm.\n\nYes."
    assert conversation.messages[-1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }
    assert "".join(conversation.answer("Sure?")) == "Hm.\n\nYes."
    assert executor.prompts[-1].endswith(
        "<|start|>assistant<|channel|>final<|message|>Yes.<|end|>"
        "<|start|>user<|message|>Sure?<|end|><|start|>assistant"
    )
