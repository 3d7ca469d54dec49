"""A page file is served only if it holds exactly the requested page."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.disk import page_file
from heddle.disk.page_file import (
    PageFileError,
    Prefix,
    file_bytes,
    page_in,
    parts_of,
    scope_of,
)
from heddle.state import FIRST_KEY, PAGE_TOKENS, PictureKeys

PAGE = memoryview(bytes(range(200)))
PREFIX = Prefix(b"f" * 32, scope_of("tenant"), array("i", range(2 * PAGE_TOKENS)))
CONTENT = b"".join(parts_of(PREFIX, PAGE))


def test_an_encoded_page_decodes_to_the_same_page() -> None:
    assert page_in(CONTENT, PREFIX, len(PAGE)) == PAGE
    assert len(CONTENT) == file_bytes(PREFIX, len(PAGE))


def test_every_flipped_bit_is_detected() -> None:
    for position in range(len(CONTENT)):
        for bit in range(8):
            damaged = bytearray(CONTENT)
            damaged[position] ^= 1 << bit
            with pytest.raises(PageFileError):
                page_in(bytes(damaged), PREFIX, len(PAGE))


def test_every_wrong_length_is_detected() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(PageFileError, match=f"it has {length} bytes"):
            page_in(CONTENT[:length], PREFIX, len(PAGE))
    with pytest.raises(PageFileError):
        page_in(CONTENT + b"\0", PREFIX, len(PAGE))


def others() -> list[Prefix]:
    changed = array("i", PREFIX.tokens)
    changed[0] += 1
    return [
        replace(PREFIX, fingerprint=b"g" * 32),
        replace(PREFIX, scope=scope_of(None)),
        replace(PREFIX, scope=scope_of("")),
        replace(PREFIX, tokens=changed),
        PREFIX.up_to(1),
    ]


@pytest.mark.parametrize("other", others())
def test_a_valid_file_of_another_prefix_is_refused(other: Prefix) -> None:
    assert other.name != PREFIX.name
    content = b"".join(parts_of(other, PAGE))
    assert page_in(content, other, len(PAGE)) == PAGE
    with pytest.raises(PageFileError):
        page_in(content, PREFIX, len(PAGE))


def test_a_file_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_file, "FORMAT", page_file.FORMAT + 1)
    with pytest.raises(PageFileError, match="another model, format"):
        page_in(CONTENT, PREFIX, len(PAGE))


def test_the_salt_is_not_in_the_file() -> None:
    assert b"tenant" not in CONTENT
    assert len({scope_of(salt) for salt in (None, "", "none", "a", "\ud800")}) == 5


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5))
def test_a_file_name_depends_only_on_the_prefix(seeds: list[int]) -> None:
    tokens = array("i", [seed for seed in seeds for _ in range(PAGE_TOKENS)])
    prefix = Prefix(b"f" * 32, scope_of(None), tokens)
    names = list(prefix.names())
    assert names == [prefix.up_to(pages).name for pages in range(1, len(seeds) + 1)]
    assert len(set(names)) == len(seeds)


def named(monkeypatch: pytest.MonkeyPatch, before: int, *contents: bytes) -> list[str]:
    """Names of pages of a text and pictures, in a process that has seen others before."""
    keys = PictureKeys()
    for number in range(before):
        keys.key_of(b"before" + bytes([number]))
    monkeypatch.setattr(page_file, "PICTURE_KEYS", keys)
    tokens = array("i", range(PAGE_TOKENS - 1))
    for content in contents:
        tokens.extend([keys.key_of(content)] * (PAGE_TOKENS // 2))
    tokens = tokens[: len(tokens) // PAGE_TOKENS * PAGE_TOKENS]
    prefix = replace(PREFIX, tokens=tokens)
    names = list(prefix.names())
    assert prefix.name == names[-1]
    content = b"".join(parts_of(prefix, PAGE))
    assert len(content) == file_bytes(prefix, len(PAGE))
    assert page_in(content, prefix, len(PAGE)) == PAGE
    return names


def test_pictures_have_their_contents_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that has one token of a picture has its whole digest."""
    a, b, c = (bytes([n]) * 32 for n in range(3))
    first = named(monkeypatch, 0, a, b, a)
    assert len(first) == 2
    assert named(monkeypatch, 7, a, b, a) == first
    others = [named(monkeypatch, 0, *found) for found in ((c, b, a), (a, c, a), (b, a, b))]
    assert [other[0] == first[0] for other in others] == [False, True, False]
    assert all(other[1] != first[1] for other in others)


def test_forgotten_pictures_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.state._MOST_KEYS", 2)
    keys, other = PictureKeys(), PictureKeys()
    first = keys.key_of(b"a")
    assert first == keys.key_of(b"a") == FIRST_KEY
    assert [keys.key_of(b"b"), keys.key_of(b"c")] == [FIRST_KEY + 1, FIRST_KEY + 2]
    assert keys.content_of(FIRST_KEY + 1) == b"b"
    assert keys.content_of(first) == keys.content_of(first) != b"a"
    assert keys.content_of(first) != other.content_of(first)
    assert keys.key_of(b"a") == FIRST_KEY + 3
