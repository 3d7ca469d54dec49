"""Eyes without an encoder: each picture is two tokens for each started 10 pixels of its width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle.errors import InvalidRequestError
from heddle.pictures import Laid, Look, Pictures, Span
from heddle.state import FIRST_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.pictures import Illustrated, Picture

ROW_TOKEN = 27
"""The space of the fake tokenizer."""


class EncodesChats(Protocol):
    """What fake eyes need of a fake tokenizer."""

    def encode_chat(self, text: str) -> list[int]: ...


class FakeEncoder:
    """Has nothing to do: looks have their rows."""

    def advance(self, wanted: Sequence[Look], seconds: float) -> None:
        raise AssertionError("all looks have rows")

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakeEyes:
    """See :class:`heddle.pictures.Sighted`.

    Attributes:
        seen: the pictures so far, in order.
        texts: the prompts so far.
    """

    mark = "<pad>"
    bits: tuple[object, ...] = ()
    summary = "fake"

    def __init__(self, tokenizer: EncodesChats) -> None:
        self.encoder = FakeEncoder()
        self.seen: list[Picture] = []
        self.texts: list[str] = []
        self._tokenizer = tokenizer

    def lay(self, prompt: Illustrated) -> Laid:
        first, *rest = prompt.text.split(self.mark)
        if len(rest) != len(prompt.pictures):
            raise InvalidRequestError("marks and pictures differ", param="messages")
        self.texts.append(prompt.text)
        self.seen += prompt.pictures
        tokens, spans = self._tokenizer.encode_chat(first), []
        for picture, text in zip(prompt.pictures, rest, strict=True):
            height, width, _ = picture.pixels.shape
            count = self.count(width, height)
            key = FIRST_KEY + int(picture.digest[:4], 16)
            look = Look(key, count, (), None, np.zeros((count, 4), np.float32))
            spans.append(Span(len(tokens), look, 0, count))
            tokens += [ROW_TOKEN] * count + self._tokenizer.encode_chat(text)
        return Laid(tokens, Pictures(spans))

    def count(self, width: int, height: int) -> int:
        return 2 * -(-width // 10)
