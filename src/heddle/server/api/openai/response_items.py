"""The items of a response's output, as JSON and as events.

The last events of an item and of the response repeat the complete item. So an item keeps its text
and its log probabilities. Log probabilities as JSON take a tenth of the memory of objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from heddle.server.http.encoding import array, encode, encoded_event, joined
from heddle.server.http.record import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

COMPLETED, INCOMPLETE = "completed", "incomplete"


class EventWriter:
    """Writes and numbers the events of one stream."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, kind: str, fields: Json | None = None, **encoded: bytes) -> bytes:
        """The next event. `fields` are values to encode; `encoded` values are JSON."""
        head = {"type": kind, "sequence_number": self._number, **(fields or {})}
        self._number += 1
        return encoded_event(joined(head, **encoded), kind)


class OutputItem(ABC):
    """One item of the output. Its text arrives in pieces, with log probabilities for some items.

    Attributes:
        held: approximate bytes that the item keeps for later events.
    """

    prefix: str
    event_prefix: str
    """Prefix of the names of the item's text events."""

    def __init__(self, index: int) -> None:
        """`index` is the item's place in the output."""
        self.held = 0
        self._id = self.prefix + new_id()
        self._index = index
        self._pieces: list[str] = []

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        """Add the next piece of text."""
        self._pieces.append(text)
        self.held += len(text)

    def opening(self, events: EventWriter) -> bytes:
        """Events before the first piece of text."""
        item = self._with(b'""', "in_progress", empty=True)
        return events("response.output_item.added", {"output_index": self._index}, item=item)

    def piece(self, events: EventWriter, text: str, logprobs: Sequence[Json] = ()) -> bytes:
        """Add the next piece of text and return its event."""
        self.add(text, logprobs)
        return events(f"{self.event_prefix}.delta", {**self._place, "delta": text})

    def closing(self, events: EventWriter, status: str) -> bytes:
        """Events after the last piece of text."""
        item = self.encoded(status)
        return events("response.output_item.done", {"output_index": self._index}, item=item)

    def encoded(self, status: str) -> bytes:
        """The item as JSON."""
        return self._with(self._text, status)

    @property
    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index}

    @property
    def _text(self) -> bytes:
        return encode("".join(self._pieces))

    @abstractmethod
    def _with(self, text: bytes, status: str, *, empty: bool = False) -> bytes:
        """The item as JSON with `text`, which is JSON; `empty`: before the first text."""


class PartItem(OutputItem):
    """An item whose text is a part of its `content`."""

    def opening(self, events: EventWriter) -> bytes:
        part = self._part(b'""')
        return super().opening(events) + events(
            "response.content_part.added", self._place, part=part
        )

    def closing(self, events: EventWriter, status: str) -> bytes:
        text = self._text
        return (
            events(f"{self.event_prefix}.done", self._place, text=text, **self._logprobs_field())
            + events("response.content_part.done", self._place, part=self._part(text))
            + super().closing(events, status)
        )

    @property
    def _place(self) -> Json:
        return super()._place | {"content_index": 0}

    def _with(self, text: bytes, status: str, *, empty: bool = False) -> bytes:
        content = array([] if empty else [self._part(text)])
        return joined(self._frame(status), content=content)

    def _logprobs_field(self) -> dict[str, bytes]:
        """The field `logprobs` as JSON, for items that have it."""
        return {}

    @abstractmethod
    def _part(self, text: bytes) -> bytes: ...

    @abstractmethod
    def _frame(self, status: str) -> Json: ...


class OutputMessage(PartItem):
    """A message of the assistant."""

    prefix = "msg_"
    event_prefix = "response.output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[bytes] = []

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        super().add(text)
        encoded = [encode(logprob) for logprob in logprobs]
        self._logprobs += encoded
        self.held += sum(map(len, encoded))

    def piece(self, events: EventWriter, text: str, logprobs: Sequence[Json] = ()) -> bytes:
        before = len(self._logprobs)
        self.add(text, logprobs)
        fields = {**self._place, "delta": text}
        logged = array(self._logprobs[before:])
        return events(f"{self.event_prefix}.delta", fields, logprobs=logged)

    def _logprobs_field(self) -> dict[str, bytes]:
        return {"logprobs": array(self._logprobs)}

    def _part(self, text: bytes) -> bytes:
        fields = {"type": "output_text", "annotations": []}
        return joined(fields, text=text, **self._logprobs_field())

    def _frame(self, status: str) -> Json:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant"}


class OutputReasoning(PartItem):
    """The complete reasoning, without a summary."""

    prefix = "rs_"
    event_prefix = "response.reasoning_text"

    def _part(self, text: bytes) -> bytes:
        return joined({"type": "reasoning_text"}, text=text)

    def _frame(self, status: str) -> Json:
        return {"id": self._id, "type": "reasoning", "status": status, "summary": []}


class OutputFunctionCall(OutputItem):
    """A function call. The arguments are its text."""

    prefix = "fc_"
    event_prefix = "response.function_call_arguments"

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self._fields = {
            "id": self._id,
            "type": "function_call",
            "call_id": "call_" + new_id(),
            "name": name,
        }

    def closing(self, events: EventWriter, status: str) -> bytes:
        fields = {**self._place, "name": self._fields["name"]}
        done = events(f"{self.event_prefix}.done", fields, arguments=self._text)
        return done + super().closing(events, status)

    def _with(self, text: bytes, status: str, *, empty: bool = False) -> bytes:
        return joined({**self._fields, "status": status}, arguments=text)
