"""A source of characters for parsers that start before the text is complete.

A parser is a generator. It asks for the next character with `yield from source.next()`, and Python
suspends it until a character arrives. So a parser is plain recursive descent, and its result does
not depend on how the text was cut into pieces. A parser can put back characters that it has read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, str, T]
"""A generator that reads characters sent to it, and returns a T."""

Take: TypeAlias = Callable[[str], object]
"""A function that gets text as the parser reads it."""

MOST_BACKTRACKED = 1 << 20
"""Total backtracking budget, in characters. Beyond it, every attempt fails. Nested incomplete calls
may all fail at the end of the text: 400 nested calls (8,800 characters) took 0.3 s, and the time
grows with the square of their number."""

END = ""
"""The value that a parser reads after the last character, every time it asks."""


@lru_cache
def _beginning(marks: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that matches the first character of any of the marks."""
    return re.compile("|".join(re.escape(mark[0]) for mark in marks) or "(?!)")


class Characters:
    """A text that grows at its end.

    Attributes:
        cut: if the text was cut off, marks that may be incomplete at its end; else empty.
        ended: whether END has been read.
    """

    def __init__(self) -> None:
        self.cut: Collection[str] = ()
        self._returned: list[str] = []  # characters put back, in reverse order
        self._record: list[str] | None = None
        self._backtracked = 0
        self._arrived = 0
        self.ended = False
        self._search: tuple[re.Pattern[str], Take] | None = None  # the search of `until`

    def send(self, text: str, steps: Steps[None]) -> None:
        """Send `text` to `steps`, a parser that reads from this object.

        While the parser looks for marks, this method handles characters that cannot begin a mark
        without the generator: this is ten times as fast.
        """
        place = 0
        while place < len(text):
            if self._search is not None:
                beginning, take = self._search
                found = beginning.search(text, place)
                end = len(text) if found is None else found.start()
                if end > place:
                    take(text[place:end])
                    self._arrived += end - place
                    place = end
                    continue
            steps.send(text[place])
            place += 1

    @property
    def position(self) -> int:
        """How many characters have been read and not put back."""
        return self._arrived - len(self._returned)

    def next(self) -> Steps[str]:
        """The next character, or END."""
        if self._returned:
            char = self._returned.pop()
        elif self.ended:
            return END
        else:
            char = yield
            self._arrived += len(char)
            self.ended = char == END
        if self._record is not None:
            self._record.append(char)
        return char

    def put_back(self, text: str) -> None:
        """Put back `text`, the last characters read. Do not put back END: it repeats itself."""
        self._returned.extend(reversed(text))
        if self._record is not None and text:
            del self._record[-len(text) :]

    def attempt(self, steps: Steps[bool]) -> Steps[bool]:
        """Run `steps`. Returns whether it succeeds. If it fails, put back all characters it read.

        Once `steps` is sure to succeed, it may call :meth:`commit` to free the record of these
        characters. After `MOST_BACKTRACKED` characters in failed attempts, every attempt fails.
        """
        if self._backtracked > MOST_BACKTRACKED:
            return False
        self._record = []
        done = yield from steps
        read, self._record = self._record, None
        if not done and read is not None:
            self._backtracked += len(read)
            self.put_back("".join(read))
        return done

    def commit(self) -> None:
        """Forget the characters that the attempt has read. It can no longer put them back."""
        self._record = None

    def after_space(self) -> Steps[str]:
        """The next character that is not space, or END."""
        char = yield from self.next()
        while char.isspace():
            char = yield from self.next()
        return char

    def skip(self, expected: str) -> Steps[bool]:
        """Read `expected`, perhaps after space. If it does not come next, read nothing.

        If the text was cut off inside `expected`, drop the incomplete `expected`.

        Returns:
            Whether `expected` came next.
        """
        read = matched = ""
        while matched != expected:
            char = yield from self.next()
            read += char
            if char.isspace() and not matched:
                continue
            matched += char
            if char == END or not expected.startswith(matched):
                if not (char == END and matched and self.cut):
                    self.put_back(read)
                return False
        return True

    def skip_one_of(self, expected: Collection[str]) -> Steps[bool]:
        """Read one of `expected`, perhaps after space. Returns whether one comes next."""
        for text in expected:
            if (yield from self.skip(text)):
                return True
        return False

    def until(self, marks: Collection[str], take: Take) -> Steps[str]:
        """Read up to the first of `marks`, and the mark too. `take` gets the text before the mark.

        No mark may begin with another mark. If the text was cut off inside a mark, drop the
        incomplete mark.

        Returns:
            The mark; END if there is none.
        """
        held, search = "", (_beginning(tuple(marks)), take)
        while held not in marks:
            one_by_one = held or self._returned or self._record is not None
            self._search = None if one_by_one else search
            char = yield from self.next()
            self._search = None
            if char == END:
                if not any(mark.startswith(held) for mark in self.cut):
                    take(held)
                return END
            held += char
            while held and not any(mark.startswith(held) for mark in marks):
                take(held[0])
                held = held[1:]
        return held

    def json_value(self, take: Take) -> Steps[None]:
        """Read the next JSON value, perhaps after space. `take` gets its text.

        This method looks only for the end of the value. It does not check that the value is valid.
        """
        char = yield from self.after_space()
        if char not in ("{", "[", '"'):
            while char != END and char not in ",}]" and not char.isspace():
                take(char)
                char = yield from self.next()
            self.put_back(char)
            return
        depth = 0
        while char != END:
            take(char)
            if char == '"':
                yield from self._rest_of_string(take)
            depth += (char in "{[") - (char in "}]")
            if not depth:
                return
            char = yield from self.next()

    def _rest_of_string(self, take: Take) -> Steps[None]:
        while (char := (yield from self.next())) != END:
            take(char)
            if char == "\\":
                take((yield from self.next()))
            elif char == '"':
                return
