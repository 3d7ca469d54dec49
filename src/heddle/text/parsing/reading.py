"""How the answers to one prompt are read: which forms of calls and which marks they may have."""

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
    """How the answers to one prompt are read.

    Attributes:
        form: of calls; None where none are to be looked for.
        names: of the functions that may be called.
        marks: of reasoning; None for a model that has none.
        reasons: whether the prompt has opened the reasoning, so that the answer begins inside.
    """

    form: CallForm | None = None
    names: frozenset[str] = frozenset()
    marks: Marks | None = None
    reasons: bool = False

    @property
    def specials(self) -> tuple[str, ...]:
        """Marks that have to be in the text, also where they are control tokens."""
        return (*(self.form.marks if self.form else ()), *(self.marks or ()))

    def reader(self) -> PartReader:
        """For one answer."""
        if self.form is None and self.marks is None:
            return PartReader()
        return self._answer_reader()

    def _answer_reader(self) -> AnswerReader:
        form, names = self.form, self.names
        read_calls = None if form is None else lambda reader: form.read(reader, names)
        return AnswerReader(self.marks, self.specials, read_calls, reasons=self.reasons)

    def watch(self) -> Callable[[str], str | None]:
        """See `heddle.types.Beginning`: an answer's calls begin after the mark of the first one.

        Where calls have no mark, they begin with the first one, once it is known for one.
        """
        reader, read = self._answer_reader(), [""]

        def feed(text: str) -> str | None:
            reader.feed(text)
            read.append(text)
            return None if reader.calls_from is None else "".join(read)[reader.calls_from :]

        return feed

    def read(self, text: str, *, cut: bool = False) -> ParsedAnswer:
        """A whole answer; `cut` as for :meth:`PartReader.finish`."""
        reader = self.reader()
        return parsed_answer(reader.feed(text) + reader.finish(cut=cut))


PLAIN = Reading()
"""All of an answer is text."""
