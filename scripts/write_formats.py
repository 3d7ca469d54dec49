"""Writes a small file of each format that Heddle keeps on disk: `tests/formats/VERSION/`.

    python scripts/write_formats.py [--slot-module NAME]

`scripts/release.py` runs it for each release, and the files stay in the tree, so that
`tests/test_formats.py` sees what later versions make of them. VERSION is that of the package that
Python imports. To write those of an older release, run this script with its tree in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from array import array
from importlib.metadata import version
from pathlib import Path
from typing import Any

from heddle.disk.page_file import Prefix, parts_of, scope_of
from heddle.extensions.engrams.build import Form, build
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.grouping import Keep
from heddle.extensions.engrams.texts import find_texts
from heddle.state import PAGE_TOKENS
from heddle.weights.progress import Silent

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "formats"
PAGE = memoryview(bytes(range(200)))
TEXT = "the cat sat on the mat and the dog sat on the cat"


class Characters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(character) for character in text]


def prefix() -> Prefix:
    """The prefix of the pages: two pages of tokens of one model and salt."""
    return Prefix(b"f" * 32, scope_of("tenant"), array("i", range(2 * PAGE_TOKENS)))


def write_page(folder: Path) -> None:
    """A file of `--prefix-cache-dir`: the second page of the prefix."""
    (folder / "prefix.page").write_bytes(b"".join(parts_of(prefix(), PAGE)))


def write_slot(folder: Path, module: str) -> None:
    """A file of `--slot-save-path`: both pages of the prefix."""
    slot = importlib.import_module(module).SlotFile.create(folder, prefix())
    for pages in (1, 2):
        slot.write(prefix().up_to(pages).name, parts_of(prefix().up_to(pages), PAGE))
    slot.finish(folder / "slot.bin")
    slot.close()


def write_engrams(folder: Path) -> None:
    """Engram tables of both versions, of one text."""
    with tempfile.TemporaryDirectory() as texts:
        Path(texts, "text.txt").write_text(TEXT)
        for number in (1, 2):
            shortest = 2 if number == 1 else 1
            form = Form(version=number, shortest=shortest, longest=2, keep=Keep(), memory=1 << 20)
            found = find_texts([texts], print)
            vocabulary = Vocabulary(128, bytes(range(32)))
            table = folder / f"version-{number}.engr"
            build(table, found, Characters(), vocabulary, form, Silent())


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--slot-module", default="heddle.extensions.llamacpp.slot_file")
    options.add_argument("--version", default=None, help="default: that of the installed package")
    given = options.parse_args()
    folder = FOLDER / (given.version or version("heddle"))
    folder.mkdir(parents=True, exist_ok=True)
    write_page(folder)
    write_slot(folder, given.slot_module)
    write_engrams(folder)
    print(*sorted(str(path) for path in folder.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
