"""The priority of one thread, below that of others in this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def lower_priority(thread: int, niceness: int) -> None:
    """Set the niceness of a thread that computes all the time; `thread` is its native id.

    Threads that mostly wait then go first. An event loop wants a core for 0.2 ms after each step.
    With equal priorities it waits for the core up to a time slice, 3 to 4 ms, and a client sees
    that as a gap.

    Only Linux gives threads priorities of their own. Elsewhere, and if the system refuses, nothing
    changes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
