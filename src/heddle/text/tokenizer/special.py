"""Finds special tokens in text, before any other tokenization.

llama.cpp first cuts out all occurrences of the longest token, then those of the next longest token.
A scan from left to right that takes the longest token at each place gives the same result, unless
two occurrences overlap and the right one is longer. So this module scans from left to right. If the
character after a token could continue such an overlap, the module starts again in llama.cpp's
order. Real vocabularies have hardly any such characters.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_CHARACTERS = 4 << 20
"""Limit on the characters of all tokens together. A node of the trie takes 300 bytes, and each
character may need a node. Known vocabularies have at most 100,000 characters."""
_LONGEST = 1024
"""Limit on the characters of a token. Text like a long token takes time in proportion to both."""
_MOST_BEGINNINGS = 64
"""Most first characters that are sought together with the second. `re` tries one after the other at
each place, and holds the GIL."""


class _Node:
    """A node of the trie: a prefix of tokens.

    Attributes:
        next: the nodes for the texts that are one character longer, by that character.
        id: the token with exactly this text; None if there is none.
        size: number of bytes of that token.
        longest: number of bytes of the longest token that begins with this text.
        suffix: the node of the longest proper suffix of this text that has a node (the failure
            function of Aho & Corasick 1975); None for the root.
    """

    __slots__ = ("id", "longest", "next", "size", "suffix")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.id: int | None = None
        self.size = 0
        self.longest = 0
        self.suffix: _Node | None = None


class SpecialTokens:
    """Cuts text at a fixed set of tokens. Immutable."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` maps each token's text, never empty, to its id.

        Time and memory grow with the characters of all tokens together.

        Raises:
            ModelFileError: the tokens have too many characters.
        """
        longest = max(map(len, ids), default=0)
        if longest > _LONGEST:
            raise ModelFileError(
                f"a control or user-defined token has {longest:,} characters; at most {_LONGEST:,}"
                " are supported. Fetch another file of this model",
                field="pieces",
            )
        characters = sum(map(len, ids))
        if characters > _MOST_CHARACTERS:
            raise ModelFileError(
                f"control and user-defined tokens have {characters:,} characters together; at most"
                f" {_MOST_CHARACTERS:,} are supported. Fetch another file of this model",
                field="pieces",
            )
        self._longest_first = sorted(ids, key=lambda token: -len(token.encode()))
        self._ids = ids
        self._trie = _trie(ids)
        self._start = re.compile(_beginnings(self._trie)) if ids else None

    def split(self, text: str) -> list[str | int]:
        """Cut `text` into plain parts, never empty, and the ids of the special tokens between."""
        if self._start is None:
            return [text] if text else []
        parts: list[str | int] = []
        done = position = 0
        while match := self._start.search(text, position):
            start = match.start()
            end, node = self._longest_at(text, start)
            if node is None or node.id is None:
                position = start + 1
                continue
            if _may_be_overlapped(node, text[end : end + 1]):
                return self._split_longest_first(text)
            if done < start:
                parts.append(text[done:start])
            parts.append(node.id)
            done = position = end
        if done < len(text):
            parts.append(text[done:])
        return parts

    def _longest_at(self, text: str, start: int) -> tuple[int, _Node | None]:
        """The end of the longest token that begins at `start`, and its node; None without one."""
        end, found, node = start, None, self._trie
        for position in range(start, len(text)):
            if text[position] not in node.next:
                break
            node = node.next[text[position]]
            if node.id is not None:
                end, found = position + 1, node
        return end, found

    def _split_longest_first(self, text: str) -> list[str | int]:
        parts: list[str | int] = [text]
        for token in self._longest_first:
            if token in text:
                parts = [
                    piece
                    for part in parts
                    for piece in (self._cut(part, token) if isinstance(part, str) else [part])
                ]
        return parts

    def _cut(self, text: str, token: str) -> list[str | int]:
        parts: list[str | int] = []
        for plain in text.split(token):
            parts += [plain, self._ids[token]] if plain else [self._ids[token]]
        return parts[:-1]


def _trie(ids: Mapping[str, int]) -> _Node:
    root = _Node()
    for token, id in ids.items():
        node, size = root, len(token.encode())
        for char in token:
            if char not in node.next:
                node.next[char] = _Node()
            node = node.next[char]
            node.longest = max(node.longest, size)
        node.id, node.size = id, size
    _link_suffixes(root)
    return root


def _link_suffixes(root: _Node) -> None:
    """Fill in `suffix` of all nodes, the shorter ones first."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for char, child in node.next.items():
            shorter = node.suffix
            while shorter is not None and char not in shorter.next:
                shorter = shorter.suffix
            child.suffix = root if shorter is None else shorter.next[char]
            waiting.append(child)


def _may_be_overlapped(token: _Node, char: str) -> bool:
    """Whether `char` after `token` may belong to a longer token that begins inside `token`."""
    node = token.suffix
    while node is not None and node.suffix is not None:  # from the root: begins after `token`
        if char in node.next and node.next[char].longest > token.size:
            return True
        node = node.suffix
    return False


def _beginnings(trie: _Node) -> str:
    """A pattern for the places where a token may begin."""
    if len(trie.next) > _MOST_BEGINNINGS:
        return f"[{''.join(map(re.escape, trie.next))}]"
    return "|".join(map(_first_two, trie.next.items()))


def _first_two(item: tuple[str, _Node]) -> str:
    """A pattern for the first one or two characters of tokens with this first character."""
    first, node = item
    if node.id is not None:
        return re.escape(first)
    return f"{re.escape(first)}[{''.join(map(re.escape, node.next))}]"
