"""Files that releases kept on disk: this Heddle reads them or puts them aside, and never misreads.

`scripts/write_formats.py` wrote `tests/formats/VERSION/` with the code of that release.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from heddle.disk import page_file
from heddle.disk.page_file import PageFileError, page_in, parts_of
from heddle.errors import EngramFileError
from heddle.extensions.engrams.reader import Engram
from heddle.extensions.llamacpp import slot_file
from heddle.extensions.llamacpp.slot_file import SlotFile
from heddle.loading import digests
from heddle.state import TokenArray
from heddle.weights.files import FileStamp
from write_formats import FOLDER, PAGE, TEXT, prefix, write_page, write_slot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELEASES = sorted(path for path in FOLDER.iterdir() if path.is_dir())
PUT_ASIDE = {"0.1.0"}
"""The releases with another format of page files and slot files than today's."""
MODULE = slot_file.__name__

release = pytest.mark.parametrize("folder", RELEASES, ids=lambda path: path.name)


def pages_of(slot: Path) -> Iterator[memoryview]:
    """The pages in a slot file."""
    expected = page_file.Prefix(prefix().fingerprint, prefix().scope, TokenArray("i"))
    file = SlotFile.open(slot, expected, 1000, len(PAGE), 0)
    try:
        assert file.prefix == prefix()
        for number, name in enumerate(prefix().names(), 1):
            yield page_in(file.read(name), prefix().up_to(number), len(PAGE))
    finally:
        file.close()


@release
def test_a_page_of_a_release(folder: Path) -> None:
    content = (folder / "prefix.page").read_bytes()
    assert len(content) > len(PAGE)
    if folder.name not in PUT_ASIDE:
        assert page_in(content, prefix(), len(PAGE)) == PAGE
    else:
        with pytest.raises(PageFileError):
            page_in(content, prefix(), len(PAGE))


@release
def test_a_slot_of_a_release(folder: Path) -> None:
    if folder.name not in PUT_ASIDE:
        assert list(pages_of(folder / "slot.bin")) == [PAGE, PAGE]
    else:
        with pytest.raises(PageFileError, match="no slot file of this version"):
            list(pages_of(folder / "slot.bin"))


@release
@pytest.mark.parametrize("version", [1, 2])
def test_an_engram_table_of_a_release(folder: Path, version: int) -> None:
    counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    tokens = [ord(character) for character in TEXT]
    for order in {1: (2,), 2: (1, 2)}[version]:
        for end in range(order, len(tokens)):
            counts[tuple(tokens[end - order : end])][tokens[end]] += 1
    with Engram.open(folder / f"version-{version}.engr") as table:
        assert table.header.version == version
        for ngram, followers in counts.items():
            found = table.look_up(ngram)
            assert found is not None
            assert dict(found.followers) == followers


# --- files of today and of a release to come ------------------------------------------------------


def test_files_of_today_are_read(tmp_path: Path) -> None:
    write_page(tmp_path)
    assert page_in((tmp_path / "prefix.page").read_bytes(), prefix(), len(PAGE)) == PAGE
    write_slot(tmp_path, MODULE)
    assert list(pages_of(tmp_path / "slot.bin")) == [PAGE, PAGE]


def test_a_newer_page_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(page_file, "FORMAT", page_file.FORMAT + 1)
        content = b"".join(parts_of(prefix(), PAGE))
    with pytest.raises(PageFileError, match="format"):
        page_in(content, prefix(), len(PAGE))


def test_a_newer_slot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slot_file, "FORMAT", slot_file.FORMAT + 1)
        write_slot(tmp_path, MODULE)
    with pytest.raises(PageFileError, match="no slot file of this version"):
        list(pages_of(tmp_path / "slot.bin"))


def test_a_newer_engram_table_is_refused(tmp_path: Path) -> None:
    content = bytearray((RELEASES[-1] / "version-2.engr").read_bytes())
    content[4] = 3
    (tmp_path / "newer.engr").write_bytes(content)
    with pytest.raises(EngramFileError, match="is 3; this Heddle reads 1 and 2"):
        Engram.open(tmp_path / "newer.engr")


def test_a_digest_of_another_format_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept digest has no room for a version, so the version is in its name."""
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(digests, "_SETTLED", -3600.0)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")

    def digest() -> str:
        digests._digest_of_files.cache_clear()
        return digests.digest_of_files({file: FileStamp.of(file.stat())})

    with monkeypatch.context() as patch:
        patch.setattr(digests, "FORMAT", digests.FORMAT + 1)
        patch.setattr(digests, "_read_all", lambda _: "0" * 64)
        assert digest() == "0" * 64
    assert digest() != "0" * 64
