"""Messages between a process and its child: structs that msgspec writes as MessagePack.

A message carries the name of its class. The reader names the classes that it takes, and msgspec
checks each field against its type. So a child, which an error of its device may have damaged, can
send nothing of another form. `memoryview` fields are parts of the message that arrived: no copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from heddle.executor import PageMemory

Count = Annotated[int, Meta(ge=0)]
"""A count that the child reports."""


class Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of messages."""


class Message(Part, frozen=True, tag=True):
    """Base of all messages."""


# --- the life of a child -------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The child's versions. It is the child's first message."""

    versions: dict[str, str]


class Beat(Message, frozen=True):
    """The child lives."""


class Failed(Message, frozen=True):
    """The child ends, and why."""

    problem: str


class Close(Message, frozen=True):
    """The parent asks the child to end."""


Life = Hello | Beat | Failed | Close


# --- state of sequences, and the warm-up ---------------------------------------------------------


class Call(Message, frozen=True):
    """Base of calls of an executor. Executor 1 is the head of executor 0."""

    executor: int


class WarmUp(Call, frozen=True):
    """Do what comes before the first step."""


class ReadPage(Call, frozen=True):
    """Read a page, and a page of each windowed group. The answer is :class:`Content`."""

    page: int
    windows: list[int]


class WritePage(Call, frozen=True):
    """Write such pages. The answer is :class:`Done`."""

    page: int
    windows: list[int]
    content: memoryview


class ReadSnapshot(Call, frozen=True):
    """Read a snapshot. The answer is :class:`Content`."""

    snapshot: int


class WriteSnapshot(Call, frozen=True):
    """Write a snapshot. The answer is :class:`Done`."""

    snapshot: int
    content: memoryview


class Content(Message, frozen=True):
    """The bytes of pages, or of a snapshot."""

    content: memoryview


class Done(Message, frozen=True):
    """A call has ended, and has no result."""


StateCall = ReadPage | WritePage | ReadSnapshot | WriteSnapshot


def serve_state(memory: PageMemory, call: StateCall) -> Content | Done:
    """Read or write state, and return the answer."""
    match call:
        case ReadPage():
            return Content(memory.read_page(call.page, call.windows))
        case WritePage():
            memory.write_page(call.page, call.content, call.windows)
        case ReadSnapshot():
            return Content(memory.read_snapshot(call.snapshot))
        case WriteSnapshot():
            memory.write_snapshot(call.snapshot, call.content)
    return Done()
