"""Texts of engram tables: where they come from, and where they are cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from heddle.errors import EngramError
from heddle.extensions.engrams import texts
from heddle.extensions.engrams.texts import Text, find_texts

if TYPE_CHECKING:
    from pathlib import Path


def text_at(path: Path, content: str | bytes) -> Text:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Text(str(path), path.stat().st_size, path)


def nothing(_: int) -> None:
    pass


def test_a_folder_gives_its_texts_by_path(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/c/y.py", ".hidden", ".git/x", "a.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"a\0b" if name.endswith("png") else b"text")
    notes: list[str] = []
    found = find_texts([str(tmp_path / "b.txt"), str(tmp_path)], notes.append)
    names = [os.path.relpath(text.name, tmp_path) for text in found]
    assert names == ["b.txt", "a/c/y.py", "a/z.md", "a.txt", "b.txt"]
    assert notes == [f"{tmp_path}/picture.png is not text; left out"]


def test_standard_input_is_a_text(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from a pipe", "utf-8")
    with (tmp_path / "in").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        (found,) = find_texts(["-"], print)
        assert (found.name, found.size) == ("standard input", None)
        assert list(found.pieces(nothing)) == ["from a pipe"]


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        ("one\ntwo\nthree\nfour", ["one\ntwo\n", "three\nfour"]),
        ("one\r\ntwo three four", ["one\r\n", "two", " three", " four"]),
        ("one two three four", ["one two", " three", " four"]),
        ("one\n\n  two\n three", ["one\n\n  two", "\n three"]),
        ("x" * 25, ["x" * 10, "x" * 10, "x" * 5]),
        ("äöü\näöü\nßßßßßßßß", ["äöü\näöü\n", "ßßßßßßßß"]),
        ("\ufeffone", ["one"]),
        ("", []),
    ],
)
def test_a_long_text_is_cut_at_lines_then_at_spaces(
    monkeypatch, tmp_path: Path, content: str, pieces: list[str]
) -> None:
    monkeypatch.setattr(texts, "PIECE", 10)
    for size in (1, 3, 100):
        monkeypatch.setattr(texts, "_READ", size)
        text, read = text_at(tmp_path / "x", content), []
        assert list(text.pieces(read.append)) == pieces
        assert sum(read) == text.size


@pytest.mark.parametrize(
    ("content", "place"), [(b"abc\xff", 3), (b"ab\xc3(c", 2), (b"abcd\xe4\xb8", 4)]
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_an_error_names_the_text_and_the_byte(
    monkeypatch, tmp_path: Path, content: bytes, place: int, size: int
) -> None:
    monkeypatch.setattr(texts, "_READ", size)
    with pytest.raises(EngramError, match=rf"bad is not UTF-8 at byte {place}\. Convert"):
        list(text_at(tmp_path / "bad", content).pieces(nothing))


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path / "absent"), ""):
        with pytest.raises(EngramError, match=f"'{name}' does not exist"):
            find_texts([name], print)
    with pytest.raises(EngramError, match="no text files"):
        find_texts([str(tmp_path)], print)
    text = text_at(tmp_path / "gone", "text")
    (tmp_path / "gone").unlink()
    with pytest.raises(EngramError, match=r"cannot read .*gone: No such file"):
        list(text.pieces(nothing))
