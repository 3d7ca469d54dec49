"""How to read the answers to one prompt: their call form and their marks of reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.text.parsing.answer_reader import AnswerReader, Marks, PartReader
from heddle.text.parsing.parts import parsed_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.text.chat.call_forms import CallForm
    from heddle.text.parsing.parts import ParsedAnswer


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read the answers to one prompt.

    Attributes:
        form: the call form; None if the reader does not look for calls.
        names: names of the functions that may be called.
        marks: marks of reasoning; None for a model without reasoning.
        reasons: whether the prompt opens the reasoning, so that the answer begins inside it.
        opened: marks at the end of the prompt that open the answer's text; empty for most forms.
        resumes: whether the prompt has a part of the reasoning, too.
    """

    form: CallForm | None = None
    names: frozenset[str] = frozenset()
    marks: Marks | None = None
    reasons: bool = False
    opened: str = ""
    resumes: bool = False

    @property
    def frames(self) -> bool:
        """Whether the form marks whole answers, so that their text cannot be read without it."""
        return self.form is not None and self.form.frames

    def controls(self, control_id: Callable[[str], int | None]) -> tuple[str, ...]:
        """The marks that are control tokens: those with an id by `control_id`."""
        return tuple(text for text in self.specials if control_id(text) is not None)

    @property
    def specials(self) -> tuple[str, ...]:
        """All marks. If a mark is a control token, the detokenizer must show it in the text."""
        if self.form is not None and self.frames:
            return self.form.marks
        return (*(self.form.marks if self.form else ()), *(self.marks.pieces if self.marks else ()))

    def reader(self) -> PartReader:
        """A reader for one answer."""
        if self.form is None and self.marks is None:
            return PartReader()
        return self._answer_reader()

    def _answer_reader(self) -> AnswerReader:
        form, names = self.form, self.names
        read_calls = None if form is None else lambda reader: form.read(reader, names)
        begun = self.marks.opening if self.marks and self.reasons else self.opened
        marks = None if self.frames else self.marks
        return AnswerReader(marks, self.specials, read_calls, begun, resumes=self.resumes)

    def watch(self) -> Callable[[str], str | None]:
        """A function that detects where an answer's calls begin; see `heddle.grammars.Beginning`.

        Calls begin after the first mark of a call. Without marks, they begin at the first object
        that the reader recognises as a call.
        """
        reader, read = self._answer_reader(), [""]

        def feed(text: str) -> str | None:
            reader.feed(text)
            read.append(text)
            return None if reader.calls_from is None else "".join(read)[reader.calls_from :]

        return feed

    def read(self, text: str, *, cut: bool = False) -> ParsedAnswer:
        """Parse a complete answer. For `cut` see :meth:`PartReader.finish`."""
        reader = self.reader()
        return parsed_answer(reader.feed(text) + reader.finish(cut=cut))


PLAIN = Reading()
"""Reads all of an answer as text."""
