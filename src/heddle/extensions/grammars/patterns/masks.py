"""The masks of a regular expression, each made once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from heddle.extensions.grammars.patterns.places import Pattern, PatternMatcher

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence
    from typing import Protocol

    class Tokens(Protocol):
        """The methods of a tokenizer that patterns use."""

        @property
        def vocabulary_size(self) -> int: ...
        @property
        def eos_ids(self) -> Collection[int]: ...
        def token_bytes(self, id: int, /) -> bytes: ...
        def is_special(self, id: int, /) -> bool: ...


_MOST_BYTES = 8 << 20
"""Bytes of the masks that a pattern keeps: 1,300 for SmolLM2's tokens, 440 for Qwen2.5's."""


class TokenTexts:
    """The bytes of a model's tokens; None for tokens without text."""

    def __init__(self, tokens: Tokens) -> None:
        ends = frozenset(tokens.eos_ids)
        self.texts = [
            None if id in ends or tokens.is_special(id) else tokens.token_bytes(id)
            for id in range(tokens.vocabulary_size)
        ]
        self.longest_first = sorted((one for one in self.texts if one), key=len, reverse=True)


class PatternMasks:
    """The masks of one regular expression, by the keys of places. Threads share it."""

    def __init__(self, pattern: Pattern, texts: TokenTexts) -> None:
        self._pattern = pattern
        self._texts = texts.texts
        self._lock = threading.Lock()
        self._masks: dict[Hashable, bytes] = {}
        self._bytes = 0

    @classmethod
    def of(cls, regex: str, texts: TokenTexts) -> PatternMasks | None:
        """Masks of a regular expression; None if its syntax is unknown."""
        pattern = Pattern.read(regex, texts.longest_first)
        return None if pattern is None else cls(pattern, texts)

    def begin(self) -> PatternPlace:
        """The place of an output that is empty."""
        return PatternPlace(self, PatternMatcher(self._pattern), self._texts)

    def get(self, key: Hashable | None) -> bytes | None:
        """The mask of a key; None if it is not known."""
        return None if key is None else self._masks.get(key)

    def keep(self, key: Hashable | None, mask: bytes) -> None:
        """Remember the mask of a key. The oldest masks are forgotten."""
        if key is None:
            return
        with self._lock:
            if self._masks.setdefault(key, mask) is mask:
                self._bytes += len(mask)
            while self._bytes > _MOST_BYTES:
                self._bytes -= len(self._masks.pop(next(iter(self._masks))))


class PatternPlace:
    """One output's place in a regular expression.

    Attributes:
        key: the key of the place; None if it has none.
        rewind: takes back the last tokens; see `PatternMatcher.rewind`.
    """

    def __init__(
        self, masks: PatternMasks, matcher: PatternMatcher, texts: Sequence[bytes | None]
    ) -> None:
        self._masks = masks
        self._matcher = matcher
        self.rewind = matcher.rewind
        self._texts = texts
        self.key: Hashable | None = None

    def mask_after(self, tokens: Sequence[int]) -> bytes | None:
        """The mask after more tokens; None if it is not known."""
        for token in tokens:
            self._matcher.push(self._texts[token])
        self.key = self._matcher.key()
        return self._masks.get(self.key)

    def keep(self, mask: bytes) -> None:
        """Remember the mask of this place, which was not known."""
        self._masks.keep(self.key, mask)
