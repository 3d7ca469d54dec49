"""Builds engram tables from texts."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from heddle.errors import EngramError
from heddle.extensions.engrams.counting import Counter
from heddle.extensions.engrams.format import LONGEST_ORDER
from heddle.extensions.engrams.grouping import Keep, records_of
from heddle.extensions.engrams.writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from heddle.extensions.engrams.format import Vocabulary
    from heddle.extensions.engrams.records import Records
    from heddle.extensions.engrams.texts import Text

LEAST_MEMORY = 1 << 20
"""The smallest budget of a build, in bytes. Below it, runs would be a few hundred tokens long."""


class Progress(Protocol):
    """Takes reports of long work, as `heddle.weights.progress.Progress` does."""

    def start(self, label: str, total: int | None, *, unit: str = "bytes") -> None:
        """Begin work on `total` bytes, or of another `unit`; None if the size is not known."""
        ...

    def update(self, done: int) -> None:
        """Report that `done` of the total are done."""
        ...

    def finish(self) -> None:
        """End the work, with success or without."""
        ...


class Encoder(Protocol):
    """The tokenizer of a model."""

    def encode(
        self, text: str, *, add_special: bool, parse_special: bool, continues: bool
    ) -> list[int]:
        """Ids of `text`; see `heddle.text.tokenizer.tokenizer.Tokenizer.encode`."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """The n-grams of a table, the format's version, and the memory budget of the build.

    Attributes:
        longest: tokens of the longest n-grams, 1 to 16.
        shortest: tokens of the shortest n-grams.
        keep: which n-grams and tokens stay.
        version: of the format: 2, or 1, which has n-grams of one length.
        memory: budget in bytes for counting and merging. It does not change the table.

    Raises:
        EngramError: an attribute is out of range.
    """

    longest: int = 3
    shortest: int = 1
    keep: Keep = field(default_factory=lambda: Keep(top=16))
    version: int = 2
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest <= LONGEST_ORDER:
            raise EngramError(
                f"n-grams of {self.shortest} to {self.longest} tokens: the shortest must have at"
                f" least 1 token, and the longest at most {LONGEST_ORDER}. Change --shortest or"
                " --order."
            )
        if self.version == 1 and self.shortest != self.longest:
            raise EngramError(
                f"version 1 has n-grams of one length, not {self.shortest} to {self.longest}."
                " Set --shortest to --order, or write version 2."
            )
        if self.memory < LEAST_MEMORY:
            raise EngramError(
                f"a memory budget of {self.memory:,} bytes is too small; give at least 1MiB."
            )

    @property
    def orders(self) -> range:
        """All lengths of n-grams, the shortest first."""
        return range(self.shortest, self.longest + 1)


@dataclass(frozen=True, slots=True)
class Made:
    """A table that was written: its path, its n-grams by length, its size in bytes."""

    path: Path
    entries: dict[int, int]
    nbytes: int


def build(
    output: Path,
    texts: Sequence[Text],
    tokenizer: Encoder,
    vocabulary: Vocabulary,
    form: Form,
    progress: Progress,
) -> Made:
    """Count the n-grams of the texts and write them to a table.

    N-grams do not cross texts. The texts of control tokens count as plain text. The table depends
    on the texts, the tokenizer and `form`, but not on `form.memory`.

    Raises:
        EngramError: a text cannot be read or is not UTF-8, no n-gram is left, or the table cannot
            be written.
    """
    sizes = [text.size for text in texts]
    progress.start(f"checking {len(texts):,} texts", sum(size or 0 for size in sizes))
    try:
        _check(texts, progress)
    finally:
        progress.finish()
    with workspace(output) as folder:
        counter = Counter(folder, form.orders, vocabulary.size, form.memory)
        total = None if None in sizes else sum(size or 0 for size in sizes)
        progress.start(f"counting {len(texts):,} texts", total)
        try:
            _count(texts, tokenizer, counter, progress)
        finally:
            progress.finish()
        records = chain.from_iterable(
            records_of(counter.rows(order), counter.packing(order), form.keep)
            for order in form.orders
        )
        return write_table(output, folder, records, vocabulary, form, progress)


def _check(texts: Iterable[Text], progress: Progress) -> None:
    advance = _advance(progress)
    for text in texts:
        text.check(advance)


def _advance(progress: Progress) -> Callable[[int], None]:
    """A function that adds up numbers of bytes and reports their sum."""
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress.update(done)

    return advance


def _count(texts: Iterable[Text], tokenizer: Encoder, counter: Counter, progress: Progress) -> None:
    advance = _advance(progress)
    for text in texts:
        continues = False
        for piece in text.pieces(advance):
            counter.add(
                tokenizer.encode(piece, add_special=False, parse_special=False, continues=continues)
            )
            continues = True
        counter.end_document()


def write_table(
    output: Path,
    folder: Path,
    records: Iterable[Records],
    vocabulary: Vocabulary,
    form: Form,
    progress: Progress,
) -> Made:
    """Write records, ordered by length and then by n-gram, to `output`.

    `folder` takes temporary files. The table appears whole or not at all.

    Raises:
        EngramError: there are no records.
    """
    orders = (form.shortest, form.longest)
    writer = TableWriter(folder, form.version, orders, vocabulary, form.memory)
    progress.start("writing n-grams", None, unit="n-grams")
    try:
        done = 0
        for part in records:
            writer.add(part)
            done += len(part)
            progress.update(done)
        if not done:
            raise EngramError(
                f"{output} would have no n-grams. Give longer texts, or lower --min-count"
                " or --shortest."
            )
        made = folder / "table"
        writer.finish(made)
    finally:
        progress.finish()
        writer.close()
    nbytes = made.stat().st_size
    made.replace(output)
    return Made(output, writer.entries, nbytes)


@contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """A folder for temporary files beside `output`; removed at the end.

    Raises:
        EngramError: `output` is a folder, its folder does not exist, or its disk is full.
    """
    if output.is_dir():
        raise EngramError(f"cannot write {output}: it is a folder. Name a file.")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise EngramError(f"cannot write {output}: {error.strerror or error}.") from error
