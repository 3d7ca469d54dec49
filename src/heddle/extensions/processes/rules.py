"""Token rules as messages.

Requests share large objects: pieces of a vocabulary, breakers, engram tables. An object travels
once, and its number afterwards, because samplers know such objects by their identity. The child
opens the file of a table itself.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from heddle import _native
from heddle.step import EngramFile, TokenRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.step import GrammarState


class EditedElsewhere:
    """In place of grammar and processors: the engine's process has them, and sends their edits."""

    def begin(self) -> GrammarState:
        """Never called: see `heddle.extensions.processes.edits.GivenEdits`."""
        raise AssertionError("the engine's process makes the edits")


class UnreadableTable:
    """In place of an engram table that this process cannot open. Its sampler cannot be made."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __repr__(self) -> str:
        return self._problem

    def predict(self, tokens: Sequence[int]) -> NoReturn:
        """Never called: samplers refuse the table."""
        raise AssertionError(self._problem)


class _Shared(NamedTuple):
    """A shared object in a message: its number, and the first time what it is."""

    number: int
    value: Any = None


class RulesWriter:
    """Writes rules. One thread calls all methods."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._dropped: deque[int] = deque()  # garbage collection appends, in any thread

    def take_dropped(self) -> list[int]:
        """Numbers of objects that no request has any more, since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def write(self, rules: TokenRules) -> TokenRules:
        """The rules with stand-ins for what does not travel."""
        changes: dict[str, Any] = {}
        if rules.edits_logits:
            changes |= {"grammar": EditedElsewhere(), "processors": ()}
        if rules.breakers is not None:
            changes["breakers"] = self._shared(rules.breakers)
        if rules.pieces is not None:
            changes["pieces"] = self._shared(rules.pieces)
        if rules.engram is not None:
            tables: Any = tuple((self._shared(one), weight) for one, weight in rules.engram.tables)
            changes["engram"] = replace(rules.engram, tables=tables)
        return replace(rules, **changes) if changes else rules

    def _shared(self, value: Any) -> _Shared:
        number = self._numbers.get(value)
        if number is not None:
            return _Shared(number)
        self._next += 1
        self._numbers[value] = self._next
        weakref.finalize(value, self._dropped.append, self._next).atexit = False
        return _Shared(self._next, _content(value))


class RulesReader:
    """Reads what a :class:`RulesWriter` wrote."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget objects."""
        for number in numbers:
            self._objects.pop(number, None)

    def read(self, rules: TokenRules) -> TokenRules:
        """The rules with the objects of this process."""
        changes: dict[str, Any] = {}
        if rules.breakers is not None:
            changes["breakers"] = self._object(rules.breakers)
        if rules.pieces is not None:
            changes["pieces"] = self._object(rules.pieces)
        if rules.engram is not None:
            tables = tuple((self._object(table), weight) for table, weight in rules.engram.tables)
            changes["engram"] = replace(rules.engram, tables=tables)
        return replace(rules, **changes) if changes else rules

    def _object(self, shared: Any) -> Any:
        if shared.value is not None:
            value = shared.value
            self._objects[shared.number] = _opened(value) if _is_table(value) else value
        return self._objects[shared.number]


def _content(value: Any) -> Any:
    """The value to send for an object: the file of an engram table; else the object."""
    if isinstance(value, _native.Engram):
        file = getattr(value, "file", None)
        return file or UnreadableTable("an engram table was opened without its file's path")
    return value


def _is_table(value: Any) -> bool:
    return isinstance(value, EngramFile)


def _opened(file: EngramFile) -> Any:
    """The table of a file, which must be the one that the engine's process has open."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if EngramFile.stamp_of(descriptor) != file.stamp:
                return UnreadableTable(
                    f"the engram table {file.path} changed after it was loaded; load it again"
                )
            return _native.Engram(descriptor, file.vocabulary)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RuntimeError) as error:
        return UnreadableTable(f"the engram table {file.path} cannot be opened again: {error}")
