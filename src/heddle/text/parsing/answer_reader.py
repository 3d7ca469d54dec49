"""Reads an answer while it arrives, and finds its parts: reasoning, text, and function calls.

Text arrives in pieces, and a mark or a JSON value may span several pieces. The reader holds back
characters that could become a mark, so the parts do not depend on how the text was cut. Text that
begins like a call but is not a call stays text, unchanged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from heddle.text.parsing.characters import END, Characters
from heddle.text.parsing.parts import CallArguments, CallStart, Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from heddle.text.parsing.characters import Steps, Take
    from heddle.text.parsing.parts import Part

_ARGUMENTS = ("arguments", "parameters")
"""Names of the member that holds a call's arguments. Llama writes `parameters`."""
_OTHERS = ("type", "id")
"""Other members that may come before a call's name. If an object without a mark has any other
member before its name, it is not a call."""


class Marks(NamedTuple):
    """The texts that a model writes before and after its reasoning."""

    opening: str
    closing: str

    @property
    def pieces(self) -> tuple[str, ...]:
        """The texts that may be control tokens: both marks, and a tag at the start of the first."""
        tag, end, rest = self.opening.partition(">")
        return (*self, tag + end) if rest else tuple(self)


class PartReader:
    """Reads the complete answer as text. `Reading` makes readers that also find other parts."""

    def feed(self, text: str) -> list[Part]:
        """Read more text of the answer. Returns the parts that are now certain."""
        return [Text(text)] if text else []

    def finish(self, *, cut: bool = False) -> list[Part]:
        """End the answer. Returns the parts that were held back.

        `cut` says that the length limit ended the answer. The reader then drops an incomplete mark
        at the end, and a call that has nothing after its mark.
        """
        return []


class AnswerReader(PartReader, Characters):
    """Finds reasoning and calls. The call forms read with the methods of this class.

    Attributes:
        calls_from: position of the first call without a mark, or of the text after the first mark;
            None before.
    """

    def __init__(
        self,
        marks: Marks | None,
        specials: Sequence[str],
        read_calls: Callable[[AnswerReader], Steps[None]] | None,
        begun: str,
        *,
        resumes: bool,
    ) -> None:
        """
        Args:
            marks: marks of reasoning; None for a model without reasoning.
            specials: all marks. An incomplete mark at the end of a cut answer is dropped.
            read_calls: reads an answer after its reasoning; None if answers have no calls.
            begun: marks at the end of the prompt that already belong to the answer.
            resumes: whether reasoning came before the answer, so that space may begin it.
        """
        super().__init__()
        self._marks = marks
        self._specials = specials
        self._read_calls = read_calls
        # Parts that `feed` has not returned yet: the kind of each part, and its pieces of text.
        self._found: list[tuple[tuple[Any, ...], list[str]]] = []
        self._calls = 0
        self._attempt_from = 0
        self.calls_from: int | None = None
        self._text = _Trimmed(lambda text: self._add((Text,), text), begun=True)
        self._reasoning = _Trimmed(lambda text: self._add((Reasoning,), text), begun=resumes)
        self.put_back(begun)
        self._steps = self._answer()
        next(self._steps)

    def feed(self, text: str) -> list[Part]:
        self.send(text, self._steps)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        self.cut = self._specials if cut else ()
        self._steps.send(END)
        return self._take()

    # --- for call forms --------------------------------------------------------------------------

    def add_text(self, text: str) -> None:
        """Add text. The reader holds back space at the end of the text, because it drops space
        beside a call."""
        self._text(text)

    def add_reasoning(self, text: str) -> None:
        """Add reasoning. The reader drops space before the reasoning and after it."""
        self._reasoning(text)

    def read_rest(self) -> Steps[None]:
        """Read the rest of the answer as text."""
        yield from self.until((), self.add_text)

    def reject_mark(self, mark: str) -> Steps[None]:
        """Add `mark` as text, because no call followed it. At the end of a cut answer, drop it."""
        if self.cut and self.ended:
            yield from self.until((), lambda _: None)
        else:
            self.add_text(mark)

    def expect_call(self, position: int) -> None:
        """Note that calls should come after `position`."""
        if self.calls_from is None:
            self.calls_from = position

    def begin_call(self, name: str) -> None:
        """Begin a call of the function `name`. :meth:`add_arguments` adds its arguments."""
        self.commit()
        self.expect_call(self._attempt_from)
        self._text.drop_space()
        self._add((CallStart, self._calls), name)
        self._calls += 1

    def add_arguments(self, text: str) -> None:
        """Add `text` to the arguments of the last call."""
        self._add((CallArguments, self._calls - 1), text)

    def read_objects(self, names: Collection[str] | None) -> Steps[bool]:
        """Read calls that are JSON objects: one object, or several in a list or in a row.

        Args:
            names: an object is a call if it names one of these functions; None: any function.

        Returns:
            Whether there is a call. If not, this method has read nothing.
        """
        self._attempt_from = self.position
        if names is None:
            self.expect_call(self.position)
        if not (yield from self.attempt(self._first_object(names))):
            return False
        while True:
            char = yield from self.after_space()
            if char == "{":
                self.put_back(char)
                if not (yield from self.attempt(self._object(names))):
                    return True
            elif char == END or char not in ",;]}":
                self.put_back(char)
                return True

    # --- the answer ------------------------------------------------------------------------------

    def _answer(self) -> Steps[None]:
        if self._marks is not None:
            yield from self._read_reasoning(self._marks)
        if self._read_calls is not None:
            yield from self._read_calls(self)
        yield from self.read_rest()
        if not self._calls:
            self._text.end()
        yield  # after the end

    def _read_reasoning(self, marks: Marks) -> Steps[None]:
        if not (yield from self.skip(marks.opening)):
            return
        yield from self.until((marks.closing,), self._reasoning)
        self._text.begun = False

    # --- calls -----------------------------------------------------------------------------------

    def _first_object(self, names: Collection[str] | None) -> Steps[bool]:
        yield from self.skip("[")
        return (yield from self._object(names))

    def _object(self, names: Collection[str] | None) -> Steps[bool]:
        """Read an object. Returns whether it is a call. It is a call once its name is known."""
        if (yield from self.after_space()) != "{":
            return False
        call = _Call(self, names)
        while (char := (yield from self.after_space())) in ('"', ","):
            if char == ",":
                continue
            self.put_back(char)
            key = _string((yield from self._collect()))
            if (yield from self.after_space()) != ":":
                return call.begun
            if key in _ARGUMENTS:
                yield from self._arguments(call)
            elif key in ("name", "tool_name"):  # Cohere writes `tool_name`
                if not call.take_name(_string((yield from self._collect()))):
                    return call.begun
            elif names is None or call.begun or key in _OTHERS:
                yield from self._collect()
            else:
                return False
        if char not in ("}", END):  # a brace is missing
            self.put_back(char)
        if char != END:
            call.end()
        return call.begun

    def _arguments(self, call: _Call) -> Steps[None]:
        first = yield from self.after_space()
        self.put_back(first)
        if first in ("{", "["):
            yield from self.json_value(call.take_arguments)
            return
        value = yield from self._collect()
        if value != "null":
            inner = _string(value)  # JSON inside a string
            call.take_arguments(value if inner is None else inner)

    def _collect(self) -> Steps[str]:
        """The text of the JSON value that comes next."""
        pieces: list[str] = []
        yield from self.json_value(pieces.append)
        return "".join(pieces)

    # --- parts -----------------------------------------------------------------------------------

    def _add(self, kind: tuple[Any, ...], text: str) -> None:
        if self._found and self._found[-1][0] == kind:
            self._found[-1][1].append(text)
        else:
            self._found.append((kind, [text]))

    def _take(self) -> list[Part]:
        found, self._found = self._found, []
        return [kind(*index, "".join(pieces)) for (kind, *index), pieces in found]


class _Call:
    """An object that becomes a call once its name is read. Keeps arguments before the name."""

    def __init__(self, reader: AnswerReader, names: Collection[str] | None) -> None:
        self._reader = reader
        self._names = names
        self._waiting: list[str] = []
        self._argued = False
        self.begun = False

    def take_name(self, name: str | None) -> bool:
        """Begin the call if `name` may be called. Returns whether it may."""
        if not name:
            return False
        if self._names is not None and name not in self._names:
            return False
        if not self.begun:
            self.begun = True
            self._reader.begin_call(name)
            for text in self._waiting:
                self._reader.add_arguments(text)
        return True

    def take_arguments(self, text: str) -> None:
        self._argued = True
        if self.begun:
            self._reader.add_arguments(text)
        else:
            self._waiting.append(text)

    def end(self) -> None:
        """End the object. A call without arguments gets an empty object as its arguments."""
        if self.begun and not self._argued:
            self._reader.add_arguments("{}")


class _Trimmed:
    """Passes text on. Drops leading space, and holds back trailing space until more text comes.

    Attributes:
        begun: whether text other than space has come. Later space is not leading space.
    """

    def __init__(self, take: Take, *, begun: bool = False) -> None:
        self._take = take
        self._space = ""
        self.begun = begun

    def __call__(self, text: str) -> None:
        if not self.begun:
            text = text.lstrip()
        shown = text.rstrip()
        if shown:
            self._take(self._space + shown)
            self._space, self.begun = "", True
        if self.begun:
            self._space += text[len(shown) :]

    def drop_space(self) -> None:
        """Drop the space that is held back."""
        self._space = ""

    def end(self) -> None:
        """Pass on the space that is held back."""
        if self._space:
            self._take(self._space)
            self._space = ""


def _string(value: str) -> str | None:
    """The string that the JSON text `value` encodes; None if it is not a string.

    This function does not decode other values, because they could be nested too deeply.
    """
    try:
        return str(json.loads(value)) if value.startswith('"') else None
    except ValueError:
        return None
