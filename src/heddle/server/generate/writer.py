"""The protocol of writers: each API writes answers in its own shape."""

from __future__ import annotations

import logging
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading
    from heddle.types import Delta, Output, TokenLogprob

log = logging.getLogger(__name__)


class AnswerWriter(ABC):
    """Writes one answer in the shape of an API, as one JSON document or as server-sent events.

    A stream is the `opening` of each choice, its `part`s, its `closing`, and the `ending` of all.
    `failure` takes the place of the rest. These methods return the bytes of events.

    Attributes:
        id: the answer's id; logs name the request by it.
        reading: how to find the parts of a choice: text, reasoning and calls.
    """

    prefix: str

    def __init__(self, model: str, reading: Reading = PLAIN) -> None:
        self.reading = reading
        self.id = self.prefix + secrets.token_hex(12)
        self._started = time.perf_counter()
        self._model = model

    @abstractmethod
    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        """The answer as one JSON document, in pieces to join."""

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """Events before the first part of a choice."""

    @abstractmethod
    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        """Events of a new part of a choice, with the tokens since the part before it."""

    @abstractmethod
    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        """Events of the end of a choice, with the tokens that left no text."""

    @abstractmethod
    def ending(self, totals: Json) -> bytes:
        """Events after all choices."""

    @abstractmethod
    def failure(self, error: HeddleError) -> bytes:
        """The error event that ends a stream."""

    @property
    def held(self) -> int:
        """About how many bytes the writer keeps for later events."""
        return 0

    def forget(self) -> None:  # noqa: B027  most writers keep nothing
        """Drop what `held` counts. Only `failure` may follow."""

    def log_end(self, totals: Json) -> None:
        """Log that the answer is complete."""
        usage = totals["usage"]
        log.info(
            "%s: %d prompt tokens (%d cached), %d completion tokens, %.2f s",
            self.id,
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            time.perf_counter() - self._started,
        )
