"""Drafters for tests: they know the output of a sequence, and lie now and then."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many


class Costless:
    """A pace at which guesses cost nothing."""

    def guess_seconds(self, decodes: int, guesses: float) -> float:
        return 1.0

    def longest_step(self, alone: float) -> float:
        return 1.0


class Oracle:
    """Guesses the known output of a sequence. A guess lies if `lies` is true of its history."""

    def __init__(self, output: list[int], lies: int) -> None:
        self.output, self.lies, self.tokens = output, lies, list[int]()
        self.prompt: int | None = None

    def append(self, tokens: Many[int]) -> None:
        self.tokens += tokens
        if self.prompt is None:  # drafters meet a sequence when it decodes
            self.prompt = len(self.tokens) - 1

    def guess(self, most: int) -> tuple[Many[int], int]:
        assert self.prompt is not None
        said = len(self.tokens) - self.prompt
        guesses = self.output[said : said + most]
        return [
            self._lie(guess) if self._lies(index) else guess for index, guess in enumerate(guesses)
        ], 3

    def _lies(self, index: int) -> bool:
        return zlib.crc32(repr((self.tokens, index)).encode()) % self.lies == 0

    @staticmethod
    def _lie(token: int) -> int:
        return token - 1 if token else 1
