"""The engine of forms that write all calls in one section, each as a header and a JSON object.

    <section><call>header<arguments>{"key": "value"}</call></section>

A form of this kind is a class with its marks, and what its header says.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from heddle.text.chat.call_forms import CallForm, json_lark
from heddle.text.parsing.characters import END

if TYPE_CHECKING:
    from collections.abc import Collection

    from heddle.text.chat.call_forms import Mark, Schema
    from heddle.text.parsing.answer_reader import AnswerReader
    from heddle.text.parsing.characters import Steps

_LONGEST_HEADER = 256


class Sectioned(CallForm):
    """Calls in a section. Subclasses name the marks."""

    __slots__ = ()

    section: ClassVar[str]
    section_end: ClassVar[str]
    call: ClassVar[str]
    arguments: ClassVar[str]
    call_end: ClassVar[str]
    fence_end: ClassVar[str] = ""
    """What may come between the arguments and the mark `call_end`."""

    @abstractmethod
    def _name(self, source: AnswerReader, header: str) -> Steps[str]:
        """The function that a header names. An empty text if it names none.

        A form may write more of the header after the mark `arguments`, and reads it here.
        """

    @abstractmethod
    def _header(self, name: str, mark: Mark) -> str:
        """Lark for a header and the mark `arguments`."""

    def _end(self, mark: Mark) -> str:
        """Lark for what comes after the arguments."""
        return mark(self.call_end)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, source: AnswerReader, names: Collection[str]) -> Steps[None]:
        # Models leave out the section's mark at times.
        while mark := (yield from source.until((self.section, self.call), source.add_text)):
            source.expect_call(source.position)
            begun = mark == self.call
            if not (yield from self._call(source, begun)):
                yield from source.reject_mark(mark)
                continue
            while (yield from self._call(source, begun=False)):
                pass
            yield from source.skip(self.section_end)

    def _call(self, source: AnswerReader, begun: bool) -> Steps[bool]:
        """Read a call. `begun` says that its first mark has been read. Returns whether there is
        one."""
        if not (yield from source.attempt(self._begin(source, begun))):
            return False
        yield from self._arguments(source)
        if self.fence_end:
            yield from source.skip(self.fence_end)
        yield from source.skip(self.call_end)
        return True

    def _arguments(self, source: AnswerReader) -> Steps[None]:
        """Read the arguments. What is no JSON object goes to the client as it is."""
        char = yield from source.after_space()
        source.put_back(char)
        if char == "{":
            yield from source.json_value(source.add_arguments)
            return
        pieces: list[str] = []
        if (yield from source.until((self.call_end,), pieces.append)):
            source.put_back(self.call_end)
        if not (source.cut and source.ended):
            text = "".join(pieces).strip().removesuffix(self.fence_end).rstrip()
            source.add_arguments(text or "{}")

    def _begin(self, source: AnswerReader, begun: bool) -> Steps[bool]:
        if not begun and not (yield from source.skip(self.call)):
            return False
        header = ""
        while not header.endswith(self.arguments):
            char = yield from source.next()
            header += char
            if char == END or len(header) > _LONGEST_HEADER:
                return False
        name = yield from self._name(source, header.removesuffix(self.arguments).strip())
        if name:
            source.begin_call(name)
        return bool(name)

    # --- grammars --------------------------------------------------------------------------------

    def opening(self, mark: Mark) -> str:
        return mark(self.section)

    def calls(self, mark: Mark, *, several: bool) -> str:
        call, end = mark(self.call), mark(self.section_end)
        # After the mark of a call, which a late grammar may begin with, comes no second one.
        more = f"(SPACE? {call} function)*" if several else ""
        return f"(SPACE? {call})? function {more} SPACE? {end} SPACE?"

    def function(self, name: str, schema: Schema, mark: Mark) -> str:
        return f"{self._header(name, mark)} SPACE? {json_lark(schema)} SPACE? {self._end(mark)}"
