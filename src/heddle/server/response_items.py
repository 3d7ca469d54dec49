"""The items that a response's output is made of, each whole and as the events of its making.

An item is repeated in later events of its stream: in its own last ones, and in the response's. So
its log probabilities are kept as the JSON they are sent as, which is a tenth of them as objects.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from heddle.server.encoding import array, encode, encoded_event, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

COMPLETED, INCOMPLETE = "completed", "incomplete"


class Events:
    """Writes the events of one stream, which are numbered."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, kind: str, fields: Json | None = None, **encoded: bytes) -> bytes:
        """The next event, of fields that are objects and of fields that are JSON."""
        head = {"type": kind, "sequence_number": self._number, **(fields or {})}
        self._number += 1
        return encoded_event(joined(head, **encoded), kind)


class Message:
    """What the assistant says.

    Attributes:
        held: bytes kept for later events, about.
    """

    def __init__(self, index: int) -> None:
        """`index` is the item's place in the output."""
        self.held = 0
        self._id = "msg_" + secrets.token_hex(12)
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._text: list[str] = []
        self._logprobs: list[bytes] = []

    def add(self, text: str, logprobs: Sequence[Json]) -> bytes:
        """Take in the next piece of text; its log probabilities as JSON."""
        encoded = [encode(logprob) for logprob in logprobs]
        self._text.append(text)
        self._logprobs += encoded
        self.held += len(text) + sum(map(len, encoded))
        return array(encoded)

    def opening(self, events: Events) -> bytes:
        """Events before the first text."""
        index = self._place["output_index"]
        item = joined(self._frame("in_progress"), content=b"[]")
        return events("response.output_item.added", {"output_index": index}, item=item) + events(
            "response.content_part.added", self._place, part=_part(b'""', b"[]")
        )

    def piece(self, events: Events, text: str, logprobs: Sequence[Json]) -> bytes:
        """The event of new text."""
        added = self.add(text, logprobs)
        fields = {**self._place, "delta": text}
        return events("response.output_text.delta", fields, logprobs=added)

    def closing(self, events: Events, status: str) -> bytes:
        """Events after the last text."""
        text, logprobs = encode("".join(self._text)), array(self._logprobs)
        index = self._place["output_index"]
        return (
            events("response.output_text.done", self._place, text=text, logprobs=logprobs)
            + events("response.content_part.done", self._place, part=_part(text, logprobs))
            + events(
                "response.output_item.done", {"output_index": index}, item=self.encoded(status)
            )
        )

    def encoded(self, status: str) -> bytes:
        """The item as JSON."""
        part = _part(encode("".join(self._text)), array(self._logprobs))
        return joined(self._frame(status), content=array([part]))

    def _frame(self, status: str) -> Json:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant"}


def _part(text: bytes, logprobs: bytes) -> bytes:
    return joined({"type": "output_text", "annotations": []}, text=text, logprobs=logprobs)
