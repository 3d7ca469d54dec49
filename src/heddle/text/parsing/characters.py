"""Characters that arrive over time, for code that reads them as if they were all there.

What reads is a generator: it asks for the next character with `yield from source.next()` and is
suspended until one comes. So a parser is written as plain recursive descent, and how a text was cut
into pieces cannot make a difference. What has been read can be put back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, str, T]
"""Reads characters that are sent to it, and returns a T."""

Take: TypeAlias = Callable[[str], object]
"""Is given text as it is read."""

MOST_IN_VAIN = 1 << 20
"""Characters that attempts may have read and put back in all; then there are no more. Beginnings
inside of one another may each come to nothing only at the end of the text: 400 of them (8,800
characters) took 0.3 s, and that grows with their square."""

END = ""
"""Comes after the last character, as often as it is asked for."""


@lru_cache
def _beginning(marks: tuple[str, ...]) -> re.Pattern[str]:
    """What finds the first character of a mark."""
    return re.compile("|".join(re.escape(mark[0]) for mark in marks) or "(?!)")


class Characters:
    """A text that grows at its end.

    Attributes:
        cut: marks of which the text may have a beginning at its end, where it was cut off; empty if
            it was not.
        ended: whether END has been read.
    """

    def __init__(self) -> None:
        self.cut: Collection[str] = ()
        self._returned: list[str] = []  # last first
        self._record: list[str] | None = None
        self._in_vain = 0
        self._arrived = 0
        self.ended = False
        self._search: tuple[re.Pattern[str], Take] | None = None  # what `until` waits for

    def send(self, text: str, steps: Steps[None]) -> None:
        """Let `steps`, which reads from here, read more of the text.

        Where it looks for marks, what cannot begin one is handed over at once: ten times as fast.
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
        """Have `text`, which was read last, read again. END needs no putting back."""
        self._returned.extend(reversed(text))
        if self._record is not None and text:
            del self._record[-len(text) :]

    def attempt(self, steps: Steps[bool]) -> Steps[bool]:
        """Whether `steps` succeeds. If it does not, nothing has been read.

        Once it is clear that it will, it may call :meth:`commit`, and nothing is kept any longer.
        After `MOST_IN_VAIN` characters nothing succeeds.
        """
        if self._in_vain > MOST_IN_VAIN:
            return False
        self._record = []
        done = yield from steps
        read, self._record = self._record, None
        if not done and read is not None:
            self._in_vain += len(read)
            self.put_back("".join(read))
        return done

    def commit(self) -> None:
        """Forget what would be put back if the attempt failed."""
        self._record = None

    def after_space(self) -> Steps[str]:
        """The next character that is no space, or END."""
        char = yield from self.next()
        while char.isspace():
            char = yield from self.next()
        return char

    def skip(self, expected: str) -> Steps[bool]:
        """Whether `expected` comes next, perhaps after space. If not, nothing is read.

        A beginning of it where the text was cut off is dropped.
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
        """Whether one of these comes next, perhaps after space. If not, nothing is read."""
        for one in expected:
            if (yield from self.skip(one)):
                return True
        return False

    def until(self, marks: Collection[str], take: Take) -> Steps[str]:
        """Hand over what comes before the first of `marks`, and read that one too.

        No mark begins with another one. A beginning of one where the text was cut off is dropped.

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
        """Hand over the JSON value that comes next, after space: up to where it ends.

        Nothing but its end is looked for, so that what is no JSON inside of it goes through.
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
