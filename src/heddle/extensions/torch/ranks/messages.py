"""Messages between rank 0 and another rank, beside those of each child."""

from __future__ import annotations

from heddle.extensions.processes.children.messages import (
    Content,
    Count,
    Done,
    Message,
    StateCall,
    WarmUp,
)
from heddle.extensions.processes.plans import Step
from heddle.extensions.processes.sent_config import SentConfig


class Setup(Message, frozen=True):
    """The model that a rank loads, and how. The answer is :class:`Loaded`.

    Attributes:
        rank, ranks: the rank's number, and how many there are.
        path: the model's file or folder.
        files: digest of the files' names, sizes and times; of their content for another machine.
        config: the settings. `device` is the rank's own, and `kv_cache` its part in bytes.
        meeting: where the ranks meet; see `Meeting`.
        is_elsewhere: whether the rank may be on another machine than rank 0.
    """

    rank: int
    ranks: int
    path: str
    files: str
    config: SentConfig
    meeting: str
    is_elsewhere: bool


class Join(Message, frozen=True):
    """All ranks have loaded: connect to them. The answer is :class:`Done`, as of a warm-up."""


Order = Setup | Join | WarmUp | Step | StateCall
"""The messages of rank 0."""


class Loaded(Message, frozen=True):
    """Bytes of weights and pages that the rank holds."""

    held_bytes: Count


class Computed(Message, frozen=True):
    """A step is computed: a digest of values that all ranks have alike."""

    digest: bytes


Report = Loaded | Computed | Content | Done
"""The messages of the other ranks."""
