"""Texts for engram tables: files, folders and standard input, in pieces of UTF-8."""

from __future__ import annotations

import codecs
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

PIECE = 1 << 18
"""Characters of a piece that is tokenised at once."""

STDIN = "-"

_READ = 1 << 18
_TAIL = 1 << 12
_SNIFFED = 1 << 13

_LINE_END = re.compile(r"(?<=\S)\r?\n(?=\S)")
_SPACE = re.compile(r"(?<=\S)(?= \S)")


@dataclass(frozen=True, slots=True)
class Text:
    """A document.

    Attributes:
        name: its path, or "standard input".
        size: in bytes; None if it is not known.
        path: None: standard input.
    """

    name: str
    size: int | None
    path: Path | None

    def pieces(self, progress: Callable[[int], None]) -> Iterator[str]:
        """Its characters in pieces that are tokenised as they are in the whole text.

        A piece ends with a line, where words and spaces of most tokenizers end; in a long line it
        ends before a space. `progress` gets the bytes of each read.

        Raises:
            EngramError: the text cannot be read, or is not UTF-8.
        """
        text = ""
        for more in self._characters(progress):
            text += more
            while len(text) > PIECE:
                end = _cut(text[:PIECE])
                yield text[:end]
                text = text[end:]
        if text:
            yield text

    def check(self, progress: Callable[[int], None]) -> None:
        """Read a file to its end, so that counting does not stop at a damaged byte after minutes.

        Raises:
            EngramError: the file cannot be read, or is not UTF-8.
        """
        if self.size is not None:  # others can be read only once
            for _ in self._characters(progress):
                pass

    def _characters(self, progress: Callable[[int], None]) -> Iterator[str]:
        decoder, done = codecs.getincrementaldecoder("utf-8-sig")(), 0
        try:
            with self._open() as file:
                while raw := file.read(_READ):
                    pending = len(decoder.getstate()[0])
                    yield decoder.decode(raw)
                    done += len(raw)
                    progress(len(raw))
            pending, raw = len(decoder.getstate()[0]), b""
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise EngramError(
                f"{self.name} is not UTF-8 at byte {done - pending + error.start:,}. Convert it to"
                " UTF-8, or leave it out."
            ) from error
        except OSError as error:
            raise EngramError(f"cannot read {self.name}: {error.strerror or error}.") from error

    def _open(self) -> BinaryIO:
        # A duplicate, so that closing it leaves standard input open.
        return (
            os.fdopen(os.dup(sys.stdin.fileno()), "rb")
            if self.path is None
            else self.path.open("rb")
        )


def find_texts(names: Sequence[str], note: Callable[[str], None]) -> list[Text]:
    """The documents that the names mean: files, folders and "-" for standard input.

    Files of a folder come in the order of their paths. Hidden files and folders are left out, and
    files with a zero byte near their start, which are not text; `note` tells about those.

    Raises:
        EngramError: there is no such file or folder, or it has no texts.
    """
    texts = [text for name in names for text in _texts_at(name, note)]
    if not texts:
        raise EngramError(f"{', '.join(names)}: no text files there. Name a file or a folder.")
    return texts


def _texts_at(name: str, note: Callable[[str], None]) -> Iterator[Text]:
    path = Path(name)
    if name == STDIN:
        yield Text("standard input", None, None)
    elif name and path.is_dir():  # Path("") would be the current folder
        for file in _walk(path):
            if _has_zero(file):
                note(f"{file} is not text; left out")
            else:
                yield Text(str(file), file.stat().st_size, file)
    elif name and path.exists():
        yield Text(name, path.stat().st_size if path.is_file() else None, path)
    else:
        raise EngramError(
            f"{name!r} does not exist. Name a file, a folder, or - for standard input."
        )


def _walk(folder: Path) -> list[Path]:
    """All files below the folder, by path."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        found += [Path(root, file) for file in files if not file.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _has_zero(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(_SNIFFED)
    except OSError as error:
        raise EngramError(f"cannot read {path}: {error.strerror}.") from error


def _cut(text: str) -> int:
    """The place near its end at which to cut the text."""
    first = max(0, len(text) - _TAIL)
    ends = [match.end() for match in _LINE_END.finditer(text, first)]
    ends = ends or [match.end() for match in _SPACE.finditer(text, first)]
    return ends[-1] if ends else len(text)
