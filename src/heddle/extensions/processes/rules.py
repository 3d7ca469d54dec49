"""Token rules as parts of messages.

Requests share large objects: pieces of a vocabulary, breakers, engram tables. An object travels
once, and its number afterwards, because samplers know such objects by their identity. The child
opens the file of a table itself.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from heddle import _native
from heddle.extensions.engrams.bias import EngramBias, EngramFile
from heddle.extensions.processes.children.messages import Part
from heddle.token_rules import TokenPieces, TokenRules, TokenSequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.token_rules import GrammarState

ValueT = TypeVar("ValueT")


class Shared(Part, Generic[ValueT], frozen=True):
    """A shared object: its number, and the first time what it is."""

    number: int
    value: ValueT | None


class Table(Part, frozen=True):
    """An engram table: its file as in :class:`EngramFile`, or why it has none."""

    path: str = ""
    stamp: tuple[int, ...] = ()
    vocabulary: int = 0
    problem: str = ""


class Bias(Part, frozen=True):
    """An :class:`EngramBias`."""

    tables: list[tuple[Shared[Table], float]]
    alpha: float
    literal: bool
    opening: tuple[int, ...]
    closing: tuple[int, ...]


class Rules(Part, frozen=True):
    """A :class:`TokenRules`. `edits_logits` stands for grammar and processors."""

    end_tokens: tuple[int, ...]
    bad_sequences: tuple[tuple[int, ...], ...]
    breakers: Shared[TokenSequences] | None
    forbidden: tuple[int, ...]
    edits_logits: bool
    pieces: Shared[TokenPieces] | None
    engram: Bias | None


class EditedElsewhere:
    """Stands for grammar and processors: the engine's process has them, and sends their edits."""

    def begin(self) -> GrammarState:
        """Never called: see `heddle.extensions.processes.edits.GivenEdits`."""
        raise AssertionError("the engine's process makes the edits")


class UnreadableTable:
    """Stands for an engram table that this process cannot open. Its sampler cannot be made."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __repr__(self) -> str:
        return self._problem

    def predict(self, tokens: Sequence[int]) -> NoReturn:
        """Never called: samplers refuse the table."""
        raise AssertionError(self._problem)


class RulesWriter:
    """Writes rules. One thread calls all methods."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._dropped: deque[int] = deque()  # garbage collection appends, in any thread

    def take_dropped(self) -> list[int]:
        """Numbers of objects that no request has any more, since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def write(self, rules: TokenRules) -> Rules:
        """The rules as a part of a message."""
        bias = rules.of(EngramBias)
        return Rules(
            rules.end_tokens,
            rules.bad_sequences,
            None if rules.breakers is None else self._shared(rules.breakers, rules.breakers),
            rules.forbidden,
            rules.edits_logits,
            None if rules.pieces is None else self._shared(rules.pieces, rules.pieces),
            None if bias is None else self._bias(bias),
        )

    def _bias(self, bias: EngramBias) -> Bias:
        tables = [(self._shared(table, _file(table)), weight) for table, weight in bias.tables]
        return Bias(tables, bias.alpha, bias.literal, bias.opening, bias.closing)

    def _shared(self, key: Any, value: ValueT) -> Shared[ValueT]:
        number = self._numbers.get(key)
        if number is not None:
            return Shared(number, None)
        self._next += 1
        self._numbers[key] = self._next
        weakref.finalize(key, self._dropped.append, self._next).atexit = False
        return Shared(self._next, value)


class RulesReader:
    """Reads what a :class:`RulesWriter` wrote."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget objects."""
        for number in numbers:
            self._objects.pop(number, None)

    def read(self, rules: Rules) -> TokenRules:
        """The rules with the objects of this process."""
        return TokenRules(
            rules.end_tokens,
            rules.bad_sequences,
            None if rules.breakers is None else self._object(rules.breakers, rules.breakers.value),
            rules.forbidden,
            EditedElsewhere() if rules.edits_logits else None,
            None if rules.pieces is None else self._object(rules.pieces, rules.pieces.value),
            () if rules.engram is None else (self._bias(rules.engram),),
        )

    def _bias(self, bias: Bias) -> EngramBias:
        tables = tuple((self._table(shared), weight) for shared, weight in bias.tables)
        return EngramBias(tables, bias.alpha, bias.literal, bias.opening, bias.closing)

    def _table(self, shared: Shared[Table]) -> Any:
        return self._object(shared, None if shared.value is None else _opened(shared.value))

    def _object(self, shared: Shared[Any], value: Any) -> Any:
        if value is not None:
            self._objects[shared.number] = value
        return self._objects[shared.number]


def _file(table: Any) -> Table:
    file: EngramFile | None = getattr(table, "file", None)
    if file is None:
        return Table(problem="an engram table was opened without its file's path")
    return Table(str(file.path), file.stamp, file.vocabulary)


def _opened(table: Table) -> Any:
    """The table of a file, which must be the one that the engine's process has open."""
    if table.problem:
        return UnreadableTable(table.problem)
    path = Path(table.path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if EngramFile.stamp_of(descriptor) != table.stamp:
                return UnreadableTable(
                    f"the engram table {path} changed after it was loaded; load it again"
                )
            return _native.Engram(descriptor, table.vocabulary)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RuntimeError) as error:
        return UnreadableTable(f"the engram table {path} cannot be opened again: {error}")
