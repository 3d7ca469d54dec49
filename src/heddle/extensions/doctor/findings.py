"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: what was looked at.
        said: what was found.
        state: `fail` if a server could not start, `warn` if it would be slow or lack something.
        advice: what to do; empty: nothing.
    """

    check: str
    said: str
    state: State = State.OK
    advice: str = ""
