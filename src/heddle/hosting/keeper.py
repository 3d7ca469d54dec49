"""The thread that unloads models that no request has named for a while."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from heddle.hosting.status import ModelState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.hosting.entry import Entry


class Keeper:
    """Unloads models after their `keep_alive`, in a thread that the first such model starts.

    It owns the thread. The registry calls all methods under its lock.

    Args:
        lock: the registry's lock, which guards the entries.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._thread: threading.Thread | None = None
        self._ended = False

    def look(self, entries: Mapping[str, Entry], unload: Callable[[str], None]) -> None:
        """Look at all models, now and when a `keep_alive` ends.

        The thread calls `unload` with the name of each model whose time is over, without the lock.
        """
        if self._thread is None and any(entry.keep_alive for entry in entries.values()):
            self._thread = threading.Thread(
                target=self._run, args=(entries, unload), name="heddle-keep-alive", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def end(self) -> None:
        """End the thread. It does not wait for an unload in progress."""
        self._ended = True
        self._changed.notify_all()

    def _run(self, entries: Mapping[str, Entry], unload: Callable[[str], None]) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                kept = [
                    entry
                    for entry in entries.values()
                    if entry.keep_alive and entry.state is ModelState.LOADED
                ]
                for entry in kept:
                    if entry.in_flight:
                        entry.used_at = now
                due = [entry.name for entry in kept if entry.used_at + entry.keep_alive <= now]
                if not due:
                    ends = [entry.used_at + entry.keep_alive - now for entry in kept]
                    self._changed.wait(min(ends, default=None))
                if self._ended:
                    return
            for name in due:
                unload(name)
