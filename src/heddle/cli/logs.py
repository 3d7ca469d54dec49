"""Logging of `heddle serve`: level, format, and a thread that writes the lines.

Neither the event loop nor the engine thread may wait for a terminal or a pipe that does not take
lines. So they only queue records, and a thread formats and writes them.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from heddle.server.http.access_log import STARTS
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_LINES = 10_000
"""Most lines that wait for the thread. Further lines are dropped and counted."""
_END_SECONDS = 2.0
"""Seconds that the last lines have at the end."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, the record's fields, and its message.

    A line at level INFO or below that has fields has no message, because it would repeat them.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record. A value that JSON does not know becomes text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", {})
        if not fields or record.levelno > logging.INFO:
            line["message"] = record.getMessage()
        line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class BackgroundHandler(logging.Handler):
    """Queues records for a thread that passes them to another handler."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self._target = target
        self._queue: Queue[logging.LogRecord | None] = Queue(_MOST_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="heddle-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; drop it if the queue is full."""
        try:
            self._queue.put_nowait(record)
        except Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is queued, within _END_SECONDS."""
        try:
            self._queue.put(None, timeout=_END_SECONDS)
            self._thread.join(_END_SECONDS)
        except Full:
            pass  # nobody reads the lines
        super().close()

    def _write(self) -> None:
        while (record := self._queue.get()) is not None:
            self._target.handle(record)
            if self._dropped and self._queue.empty():
                dropped, self._dropped = self._dropped, 0
                self._target.handle(_notice(dropped))


def _notice(dropped: int) -> logging.LogRecord:
    text = f"dropped {counted(dropped, 'line')} of the log that nobody took in time"
    return logging.LogRecord("heddle", logging.WARNING, "", 0, text, None, None)


@contextmanager
def logging_to_stderr(level: str, form: str, *, verbose: bool) -> Iterator[Callable[[str], None]]:
    """Write logs to standard error while the block runs. Yields a function that changes the level.

    Args:
        level: lowest level of Heddle's lines: debug, info, warning or error. Lines of libraries
            have at least level warning. If --debug has set level DEBUG, it stays.
        form: `text`, or `json` for one JSON object a line.
        verbose: log also one line at the end of each request.
    """
    target = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    target.setFormatter(JsonFormatter() if form == "json" else text)
    handler = BackgroundHandler(target)
    root, own, starts = logging.getLogger(), logging.getLogger("heddle"), logging.getLogger(STARTS)
    stays = own.level == logging.DEBUG

    def choose(level: str) -> None:
        chosen = logging.DEBUG if stays else logging.getLevelNamesMapping()[level.upper()]
        own.setLevel(min(chosen, logging.INFO) if verbose else chosen)
        starts.setLevel(logging.WARNING if verbose and chosen > logging.INFO else logging.NOTSET)

    choose(level)
    root.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield choose
    finally:
        root.removeHandler(handler)
        handler.close()
