"""Kinds of messages between the engine's process and the process of a device."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from heddle.errors import EngineFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.config import EngineConfig
    from heddle.errors import HeddleError
    from heddle.roofline import ModelWork
    from heddle.state import StateMemory
    from heddle.step import DeviceMemory, LogitEdit, ModelShape


class Kind(IntEnum):
    """Kinds of messages. The engine's process sends those up to COLLECT, the child the rest."""

    LOAD = 16
    """A :class:`LoadOrder`. The answer is :class:`Facts`."""
    SUBMIT = 17
    """A step: see `plans.py`."""
    EDITS = 18
    """The number of a step, and :class:`SlotEdits` by slot."""
    CALL = 19
    """A :class:`Call`."""
    ABANDON = 20
    COLLECT = 21
    """A byte: the number of the executor. The result of its oldest step is wanted. Only executors
    that run ahead wait for this."""
    PROGRESS = 32
    """Bytes loaded, or parts of the warm-up done, so far."""
    ANSWER = 33
    """An :class:`Answer` to LOAD or CALL."""
    RESULT = 34
    """A byte: the number of the executor. An :class:`Answer`: its `compute_seconds`, the device's
    memory if it was read again, and the result as `plans.py` writes it."""
    LOG = 35
    """A record of the child's log: logger, level, text."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The model that the child loads, and how.

    Attributes:
        path: the model's file or folder.
        files: digest of the files' names, sizes and times.
        config: the settings.
        load: the reference of the function that loads for the device.
        options: further keywords for it.
        level: level of log records that the engine's process wants.
    """

    path: Path
    files: str
    config: EngineConfig
    load: str
    options: dict[str, Any]
    level: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The fixed properties of an executor, and those of the executor of its head."""

    shape: ModelShape
    memory: StateMemory
    page_format: str
    summary: str
    held_bytes: int
    device_memory: DeviceMemory | None
    work: ModelWork
    runs_ahead: bool
    warm_ups: int
    head: Facts | None


class Call(NamedTuple):
    """A call of a method of an executor, by its name. Executor 1 is the head of executor 0."""

    executor: int
    method: str
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """The result of a call, or the error that it raised."""

    value: Any
    error: BaseException | None = None


class SlotEdits(NamedTuple):
    """The edits of a slot for a step; with `is_late`, or with a failure, it gets no token."""

    edits: tuple[LogitEdit, ...]
    is_late: bool
    failure: HeddleError | None


def encode(value: Any) -> bytes:
    """The content of a message."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def decode(content: bytes) -> Any:
    """The value that `encode` encoded."""
    return pickle.loads(content)


def encode_answer(answer: Answer) -> bytes:
    """The content of an answer. An error that cannot travel becomes one that can."""
    try:
        content = encode(answer)
        if answer.error is not None:
            decode(content)  # some errors can be pickled, but not made again
    except Exception:
        if answer.error is None:
            raise
        error = EngineFailedError(f"{type(answer.error).__name__}: {answer.error}")
        return encode(Answer(None, error))
    return content
