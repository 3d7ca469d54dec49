"""Messages between the engine's process and the process of a device, beside those of each child."""

from __future__ import annotations

from typing import Any

from heddle.executor import DeviceMemory, LogitsSummary, ModelShape
from heddle.extensions.processes.adapters import SentChange
from heddle.extensions.processes.children.messages import (
    Call,
    Content,
    Count,
    Done,
    Message,
    Part,
    StateCall,
    WarmUp,
)
from heddle.extensions.processes.failures import Failure
from heddle.extensions.processes.plans import Result, Step
from heddle.extensions.processes.sent_config import SentConfig
from heddle.roofline import Limits, ModelWork
from heddle.state import StateMemory
from heddle.token_rules import LogitEdit


class LoadOrder(Message, frozen=True):
    """The model that the child loads, and how. The answer is :class:`Loaded`.

    Attributes:
        path: the model's file or folder.
        files: digest of the files' names, sizes and times.
        config: the settings.
        load: the reference of the function that loads for the device.
        options: further keywords for it.
        level: level of log records that the engine's process wants.
    """

    path: str
    files: str
    config: SentConfig
    load: str
    options: dict[str, Any]
    level: int


class SlotEdits(Part, frozen=True):
    """The edits of a slot for a step; with `is_late`, or with a failure, it gets no token."""

    edits: tuple[LogitEdit, ...]
    is_late: bool
    failure: Failure | None


class Edits(Message, frozen=True):
    """The edits of a step, by slot."""

    step: int
    slots: dict[int, SlotEdits]


class Collect(Message, frozen=True):
    """Send the result of the oldest step. Only executors that run ahead wait for this."""

    executor: int


class Abandon(Message, frozen=True):
    """End the step that computes, and all later ones."""


class MeasureLimits(Call, frozen=True):
    """Measure the peak rates of the hardware. The answer is :class:`MeasuredLimits`."""


class MakeAdapter(Call, frozen=True):
    """Make the adapter with a number. The answer is :class:`MadeAdapter`.

    Attributes:
        dropped: numbers of adapters that nothing refers to any more.
    """

    number: int
    changes: dict[str, SentChange]
    dropped: list[int]


class SummariseLogits(Call, frozen=True):
    """Give figures of the last logits. The answer is :class:`LastLogits`."""


Order = (
    (LoadOrder | Step | Edits | Collect | Abandon | WarmUp | MeasureLimits | SummariseLogits)
    | MakeAdapter
    | StateCall
)
"""The messages of the engine's process."""


class Facts(Part, frozen=True):
    """The fixed properties of an executor, and those of the executor of its head."""

    shape: ModelShape
    memory: StateMemory
    page_format: str
    summary: str
    held_bytes: Count
    device_memory: DeviceMemory | None
    work: ModelWork
    runs_ahead: bool
    warm_ups: Count
    adapts: bool
    head: Facts | None


class Loaded(Message, frozen=True):
    """The model is loaded."""

    facts: Facts


class Progress(Message, frozen=True):
    """Bytes loaded, or parts of the warm-up done, so far."""

    done: Count


class MeasuredLimits(Message, frozen=True):
    """The answer to :class:`MeasureLimits`."""

    limits: Limits


class MadeAdapter(Message, frozen=True):
    """The answer to :class:`MakeAdapter`."""

    bytes: Count


class LastLogits(Message, frozen=True):
    """The answer to :class:`SummariseLogits`."""

    summary: LogitsSummary | None


class Refusal(Message, frozen=True):
    """The error of a load or a call."""

    failure: Failure


class Log(Message, frozen=True):
    """A record of the child's log."""

    logger: str
    level: int
    text: str


Report = (
    (Loaded | Progress | MeasuredLimits | MadeAdapter | LastLogits | Refusal | Log)
    | Result
    | Content
    | Done
)
"""The messages of the child."""
