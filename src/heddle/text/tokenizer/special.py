"""Finding special tokens in text, before any other tokenization.

llama.cpp cuts out the longest token first, wherever it lies, then the next longest. That differs
from the longest token at the leftmost place only where two occurrences overlap and the right one
is longer. So the scan goes left to right, and starts over in llama.cpp's order where a token is
followed by a character with which such an overlap could go on. Real vocabularies hardly know
such characters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# The next character's node; under the empty string the id of the token that ends here.
_Node = dict[str, Any]


class SpecialTokens:
    """Cuts text at a fixed set of tokens. Immutable."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` maps each token's text, never empty, to its id."""
        self._longest_first = sorted(ids, key=lambda token: -len(token.encode()))
        self._ids = ids
        self._trie: _Node = {}
        for token, id in ids.items():
            node = self._trie
            for char in token:
                node = node.setdefault(char, {})
            node[""] = id
        self._start = re.compile("|".join(map(_first_two, self._trie.items()))) if ids else None
        self._overlapped_by = _overlapped_by(ids)

    def split(self, text: str) -> list[str | int]:
        """`text` as plain parts, never empty, and the ids of the special tokens between them."""
        if self._start is None:
            return [text] if text else []
        parts: list[str | int] = []
        done = position = 0
        while match := self._start.search(text, position):
            start = match.start()
            end, id = self._longest_at(text, start)
            if id is None:
                position = start + 1
                continue
            if text[end : end + 1] in self._overlapped_by.get(id, ()):
                return self._split_longest_first(text)
            if done < start:
                parts.append(text[done:start])
            parts.append(id)
            done = position = end
        if done < len(text):
            parts.append(text[done:])
        return parts

    def _longest_at(self, text: str, start: int) -> tuple[int, int | None]:
        """Where the longest token that begins at `start` ends, and its id if there is one."""
        end, id, node = start, None, self._trie
        for position in range(start, len(text)):
            if text[position] not in node:
                break
            node = node[text[position]]
            if "" in node:
                end, id = position + 1, node[""]
        return end, id

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


def _overlapped_by(ids: Mapping[str, int]) -> dict[int, frozenset[str]]:
    """For each token the characters that, coming after it, may belong to a longer token that
    begins inside it."""
    next_after: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for token in ids:
        size = len(token.encode())
        for cut in range(1, len(token)):
            next_after[token[:cut]].append((size, token[cut]))
    overlapped_by = {}
    for token, id in ids.items():
        size = len(token.encode())
        suffixes = (token[cut:] for cut in range(1, len(token)))
        characters = frozenset(
            char
            for suffix in suffixes
            for longer, char in next_after.get(suffix, ())
            if longer > size
        )
        if characters:
            overlapped_by[id] = characters
    return overlapped_by


def _first_two(item: tuple[str, _Node]) -> str:
    """A pattern for how the tokens with one first character begin."""
    first, node = item
    if "" in node:
        return re.escape(first)
    return f"{re.escape(first)}[{''.join(map(re.escape, node))}]"
