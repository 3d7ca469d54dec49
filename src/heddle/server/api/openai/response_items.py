"""The items of a response's output, each as JSON and as events.

Later events of a stream repeat an item: its own last events, and the response's. So an item keeps
its log probabilities as JSON, which takes a tenth of the memory that objects take.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from heddle.server.http.encoding import array, encode, encoded_event, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

COMPLETED, INCOMPLETE = "completed", "incomplete"


class EventWriter:
    """Writes and numbers the events of one stream."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, kind: str, fields: Json | None = None, **encoded: bytes) -> bytes:
        """The next event. `fields` are objects, `encoded` are JSON already."""
        head = {"type": kind, "sequence_number": self._number, **(fields or {})}
        self._number += 1
        return encoded_event(joined(head, **encoded), kind)


class OutputItem(ABC):
    """One item. Its text arrives in pieces, for some items with log probabilities.

    Attributes:
        held: about how many bytes the item keeps for later events.
    """

    prefix: str
    said: str
    """The beginning of the names of its text events."""

    def __init__(self, index: int) -> None:
        """`index` is the item's place in the output."""
        self.held = 0
        self._id = self.prefix + secrets.token_hex(12)
        self._index = index
        self._pieces: list[str] = []

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        """Take in the next piece of text."""
        self._pieces.append(text)
        self.held += len(text)

    def opening(self, events: EventWriter) -> bytes:
        """Events before the first text."""
        item = self._with(b'""', "in_progress", empty=True)
        return events("response.output_item.added", {"output_index": self._index}, item=item)

    def piece(self, events: EventWriter, text: str, logprobs: Sequence[Json] = ()) -> bytes:
        """Take in the next piece of text; its event."""
        self.add(text, logprobs)
        return events(f"{self.said}.delta", {**self._place, "delta": text})

    def closing(self, events: EventWriter, status: str) -> bytes:
        """Events after the last text."""
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
        """The item as JSON with this text, or before it has any."""


class PartItem(OutputItem):
    """An item whose text is a part of its content."""

    def opening(self, events: EventWriter) -> bytes:
        part = self._part(b'""')
        return super().opening(events) + events(
            "response.content_part.added", self._place, part=part
        )

    def closing(self, events: EventWriter, status: str) -> bytes:
        text = self._text
        return (
            events(f"{self.said}.done", self._place, text=text, **self._beside())
            + events("response.content_part.done", self._place, part=self._part(text))
            + super().closing(events, status)
        )

    @property
    def _place(self) -> Json:
        return super()._place | {"content_index": 0}

    def _with(self, text: bytes, status: str, *, empty: bool = False) -> bytes:
        content = array([] if empty else [self._part(text)])
        return joined(self._frame(status), content=content)

    def _beside(self) -> dict[str, bytes]:
        """Fields beside a part's text, as JSON."""
        return {}

    @abstractmethod
    def _part(self, text: bytes) -> bytes: ...

    @abstractmethod
    def _frame(self, status: str) -> Json: ...


class OutputMessage(PartItem):
    """A message of the assistant."""

    prefix = "msg_"
    said = "response.output_text"

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
        return events(f"{self.said}.delta", fields, logprobs=array(self._logprobs[before:]))

    def _beside(self) -> dict[str, bytes]:
        return {"logprobs": array(self._logprobs)}

    def _part(self, text: bytes) -> bytes:
        return joined({"type": "output_text", "annotations": []}, text=text, **self._beside())

    def _frame(self, status: str) -> Json:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant"}


class OutputReasoning(PartItem):
    """Reasoning, in full and without a summary."""

    prefix = "rs_"
    said = "response.reasoning_text"

    def _part(self, text: bytes) -> bytes:
        return joined({"type": "reasoning_text"}, text=text)

    def _frame(self, status: str) -> Json:
        return {"id": self._id, "type": "reasoning", "status": status, "summary": []}


class OutputFunctionCall(OutputItem):
    """A call of a function. Its text is the arguments."""

    prefix = "fc_"
    said = "response.function_call_arguments"

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self._fields = {
            "id": self._id,
            "type": "function_call",
            "call_id": "call_" + secrets.token_hex(12),
            "name": name,
        }

    def closing(self, events: EventWriter, status: str) -> bytes:
        fields = {**self._place, "name": self._fields["name"]}
        done = events(f"{self.said}.done", fields, arguments=self._text)
        return done + super().closing(events, status)

    def _with(self, text: bytes, status: str, *, empty: bool = False) -> bytes:
        return joined({**self._fields, "status": status}, arguments=text)
