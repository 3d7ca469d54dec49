"""The base class of writers. Each API writes answers in its own shape."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from heddle.server.http.encoding import EVENTS
from heddle.server.http.record import IDENTITY, new_id
from heddle.text.parsing.reading import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Output, Progress, TokenLogprob
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part
    from heddle.text.parsing.reading import Reading


class AnswerWriter(ABC):
    """Writes one answer in the shape of an API, as one JSON document or as a stream of events.

    A stream has the `opening` of each choice, the `part`s and the `closing` of each choice, and the
    `ending`. After an error, `failure` is the last event. These methods return the bytes of events.

    Attributes:
        media_type: media type of streams.
        keeps_content: whether the writer keeps content for later events, which :attr:`held` counts.
        shows_progress: whether a stream has events of :meth:`progress` before the first token of
            each choice.
        id: id of the answer.
        began_at: when the answer began, in s since 1970.
        reading: how to find text, reasoning and calls in a choice.
    """

    prefix: str
    media_type: str = EVENTS
    keeps_content: bool = False
    shows_progress: bool = False

    def __init__(self, model: str, reading: Reading = PLAIN) -> None:
        self.reading = reading
        fixed = IDENTITY.get()
        self.began_at = int(time.time()) if fixed is None else fixed[1]
        self.id = self.prefix + (secrets.token_hex(12) if fixed is None else new_id())
        self._model = model

    def adapted(self, contents: str) -> None:  # noqa: B027  few APIs show it
        """Learn what identifies the adapters of the choices. Empty: they have none."""

    @abstractmethod
    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        """The answer as one JSON document, in parts to join."""

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """Events before the first part of a choice."""

    def progress(self, index: int, progress: Progress) -> bytes:
        """Events about the prompt of a choice that has no token yet."""
        return b""

    @abstractmethod
    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        """Events for a new part of a choice and for the tokens since the previous part."""

    @abstractmethod
    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        """Events for the end of a choice and for its remaining tokens, which have no text."""

    @abstractmethod
    def ending(self, totals: Json) -> bytes:
        """Events after all choices."""

    @abstractmethod
    def failure(self, error: HeddleError) -> bytes:
        """The error event that ends a stream."""

    @property
    def held(self) -> int:
        """Approximate bytes of content that the writer keeps for later events."""
        return 0

    def discard_held(self) -> None:  # noqa: B027  most writers hold nothing
        """Discard the content that `held` counts. Only `failure` may be called afterwards."""
