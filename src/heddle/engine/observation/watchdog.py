"""Notices an engine thread that has work and makes no progress, for example in a hung device.

The engine thread writes into a `Heartbeat` what it does (`activity.py`). A `Watchdog` looks at it
from a thread of its own. Python cannot stop a thread in a native call. So it logs where the engine
thread stands, and `Engine.health` turns, so that a supervisor can replace the process. If the
model is loaded again by itself, `EngineLoop.give_up_step` ends the step, or replaces the thread.

A step may take minutes, and nothing shows that it advances. So a step may take the limit and an
allowance: ten times the time that the pace expects, or a second for each token while the pace has
measured no such step.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from heddle.engine.observation.activity import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine.observation.activity import Beat, Heartbeat

_log = logging.getLogger(__name__)

LONG = 3
"""An engine that is stuck for this many times the limit is not expected to go on."""


class Watchdog:
    """Compares a heartbeat with a limit.

    Attributes:
        stuck: whether the thread made no progress for the limit.
        lost: whether it made none for `LONG` times the limit.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        watched: threading.Thread,
        model: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        report: Callable[[Beat, float, bool], None] = lambda beat, seconds, lost: None,
    ) -> None:
        """`model` is a name for the log. `seconds` is the limit; 0: never look.

        `report` is called when the thread is stuck, and again when it is lost, with the latest
        beat and the seconds since. It may call `stop`.
        """
        self.stuck = self.lost = False
        self._heartbeat = heartbeat
        self._watched = watched
        self._model = model
        self._limit = seconds
        self._interval = seconds / 4
        self._clock = clock
        self._call = report
        self._looked_at = clock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        if seconds:
            self._thread = threading.Thread(target=self._run, name="heddle-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more. The thread has ended when this returns, unless it calls this."""
        self._ends.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.stuck = self.lost = False

    def look(self) -> None:
        """Compare the heartbeat with the limit, and log a change.

        A look that comes late changes nothing: the process was stopped, and so was the engine.
        """
        now, beat = self._clock(), self._heartbeat.now
        late = now - self._looked_at > 2 * self._interval
        self._looked_at = now
        still = 0.0 if beat.phase in (Phase.IDLE, Phase.TURN) else now - beat.since - beat.allowance
        if still < self._limit:
            if self.stuck:
                _log.warning("the engine thread of %s makes progress again", self._model)
            self.stuck = self.lost = False
        elif not late:
            lost = still >= LONG * self._limit
            news = not self.stuck or lost > self.lost
            self.stuck, self.lost = True, lost
            if news:
                self._report(beat, now - beat.since)
                self._call(beat, now - beat.since, lost)

    def _run(self) -> None:
        while not self._ends.wait(self._interval):
            self.look()

    def _report(self, beat: Beat, seconds: float) -> None:
        frame = sys._current_frames().get(self._watched.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "the thread has ended\n"
        _log.error(
            "the engine thread of %s has made no progress for %.0f s: it is %s, step %d. It stands"
            " at:\n%s",
            self._model,
            seconds,
            beat.phase.value,
            beat.step,
            stack,
        )
