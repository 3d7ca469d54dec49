"""The forms in which models write function calls.

A form reads calls from an answer, writes calls into a conversation, and gives a grammar for calls.
The model's chat template decides which form applies (`text/chat/dialect.py`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from heddle.text.parsing.answer_reader import AnswerReader, Marks
    from heddle.text.parsing.characters import Steps

    Mark: TypeAlias = Callable[[str], str]
    """Returns a mark in Lark: a control token if the model has one for the mark, else text."""
    Schema: TypeAlias = Mapping[str, Any]
    """A JSON schema."""


class CallForm(ABC):
    """How one family of models writes calls. Forms have no state."""

    marks: ClassVar[tuple[str, ...]]
    """Marks of calls. If a mark is a control token, the detokenizer must show it in the text."""
    tools_variable: ClassVar[str] = "tools"
    """The variable in which templates of this family take functions."""
    frames: ClassVar[bool] = False
    """Whether the form also marks reasoning and text, so that `read` reads whole answers."""
    reasoning: ClassVar[Marks | None] = None
    """Marks of reasoning, of a form that frames answers."""
    describes_tools: bool = False
    """Whether `offered` describes functions in a message, for a template that takes none."""
    efforts: ClassVar[Sequence[str]] = ()
    """The efforts that the family was trained on, if its template takes any text."""

    @abstractmethod
    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        """Read an answer after its reasoning. Report text and calls to `source`.

        Characters that are still unread when this returns are text. `names` lists the functions
        that the request offers.
        """

    @abstractmethod
    def opening(self, mark: Mark) -> str:
        """Lark for the text before the first call."""

    @abstractmethod
    def calls(self, mark: Mark, *, several: bool) -> str:
        """Lark for the calls after `opening`. The Lark refers to the rule `function`."""

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        """Lark for one alternative of the rule `function`. `schema` is that of the arguments."""
        return object_lark(name, "arguments", schema)

    def rules(self, mark: Mark) -> Sequence[str]:
        """More rules in Lark, to which `calls` and `function` refer."""
        return ()

    def typed(self, schemas: Mapping[str, Schema]) -> CallForm:
        """The form for functions whose arguments have these schemas.

        A form that writes values without their types needs the schemas to read them.
        """
        return self

    def opened(self, prompt: str) -> str:
        """The header of the message that the prompt leaves open; empty if the answer has it."""
        return ""

    def text_opened(self, prompt: str) -> str:
        """The prompt, ending with the marks that come before an answer's text, if there are any."""
        return prompt

    def text_opening(self, mark: Mark) -> str:
        """Lark for what comes before an answer's text; empty if nothing does."""
        return ""

    def history(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages, with calls in the shape that templates of this family take."""
        return messages

    def offered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """The messages, and the value of `tools_variable`.

        Some templates take functions in messages.
        """
        return messages, tools or None


_LOOSE = {"```json": "```", "<tools>": "</tools>"}
"""Tags that models of the Hermes family write around calls instead of the trained marks. Small Qwen
2.5 models mostly do. Between these tags, only an object that names a function is a call."""


@dataclass(frozen=True, slots=True)
class Hermes(CallForm):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen write it.

    Some models of the family write several objects, or a list of objects, between one pair of
    marks. Other models write only the object, without marks.
    """

    marks: ClassVar = ("<tool_call>", "</tool_call>")

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        opening, closing = self.marks
        closings = {opening: closing, **_LOOSE}
        yield from source.read_objects(names)
        while mark := (yield from source.until(closings, source.add_text)):
            if (yield from source.read_objects(None if mark == opening else names)):
                yield from source.skip_one_of(closings.values())
            elif mark == opening:
                yield from source.reject_mark(mark)
            else:
                source.add_text(mark)

    def opening(self, mark: Mark) -> str:
        return mark(self.marks[0])

    def calls(self, mark: Mark, *, several: bool) -> str:
        opening, closing = map(mark, self.marks)
        closings = " | ".join([closing, *map(json.dumps, _LOOSE.values())])
        first = f"SPACE? function SPACE? ({closings})?"
        more = f"(SPACE? {opening} SPACE? function SPACE? {closing})*" if several else ""
        return f"{first} {more} SPACE?"


def json_lark(schema: Schema) -> str:
    """Lark for JSON that a schema allows."""
    return f"%json {json.dumps(schema)}"


def object_lark(name: str, member: str, schema: Schema) -> str:
    """Lark for the object of a call, with optional space where JSON allows it."""
    first, second = json.dumps(f'"name": "{name}",'), json.dumps(f'"{member}": ')
    return f'"{{" SPACE? {first} SPACE? {second} {json_lark(schema)} SPACE? "}}"'


HERMES = Hermes()
