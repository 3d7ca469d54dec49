"""Unloads models: when a caller asks for it, to make room for others, or when nobody uses them."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import HeddleError, ModelNotFoundError, ModelUnavailableError
from heddle.hosting.status import ModelState
from heddle.process_memory import reclaim_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine.engine import Engine
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.hosting.entries import Entries

_log = logging.getLogger(__name__)


class Unloads:
    """Ends engines, and tells observers what they were. Any thread may call `unload`.

    Args:
        entries: of the registry.
        seconds: most seconds that accepted requests may take, if the caller does not say.
        tries: failed steps with a request after which it does not go on in another engine.

    Attributes:
        observers: get the name and the former engine of each model that leaves the memory.
    """

    def __init__(self, entries: Entries, seconds: float, tries: int) -> None:
        self._entries = entries
        self._seconds = seconds
        self._tries = tries
        self.observers: list[Callable[[str, Engine], None]] = []

    def unload(self, name: str, seconds: float | None = None, *, move: bool = False) -> None:
        """Unload a model; see `Registry.unload`."""
        entries = self._entries
        with entries.lock:
            entry = entries.named(name)
            if entry.state in (ModelState.LOADING, ModelState.UNLOADING):
                raise ModelUnavailableError(f"model {name!r} is {entry.state}; try again later")
            if entry.state is ModelState.UNLOADED:
                raise ModelNotFoundError(f"model {name!r} is not loaded", param="model")
            copy = entries.copy_of(entry) if move else None
            entry.state = ModelState.UNLOADING
        if entry.engine is not None:
            if copy is not None:
                entry.engine.leave(partial(_hand_over, copy, self._tries))
            else:
                _end(entry.engine, self._seconds if seconds is None else seconds)
            self.show_former(entry.name, entry.engine)
        with entries.lock:
            waiting = entry.take_interrupted()  # of an engine that failed, perhaps meanwhile
        for interrupted in waiting:
            if copy is not None:
                copy.go_on(interrupted, self._tries)
            else:
                interrupted.give_up("the model was unloaded")
        with entries.lock:
            entry.state, entry.engine, entry.load = ModelState.UNLOADED, None, None
            if not entry.known:
                entries.forget(entry.name)
        reclaim_memory()

    def unload_quietly(self, name: str, why: str) -> None:
        """Unload a model, unless it loads, or another caller unloads it."""
        _log.info("unloading %s %s", name, why)
        try:
            self.unload(name)
        except HeddleError as error:  # another caller was faster
            _log.info("%s was not unloaded: %s", name, error.message)

    def show_former(self, name: str, engine: Engine) -> None:
        """Show all observers the engine of a model that leaves the memory."""
        for call in self.observers:
            try:
                call(name, engine)
            except Exception:
                _log.exception("an observer failed when %s was unloaded", name)


class Keeper:
    """Unloads models after their `keep_alive`, in a thread that the first such model starts.

    It owns the thread. Callers of all methods hold the lock of the entries.

    Args:
        entries: of the registry.
        unloads: unloads each model whose time is over, in the thread and without the lock.
    """

    def __init__(self, entries: Entries, unloads: Unloads) -> None:
        self._entries = entries.by_name
        self._unloads = unloads
        self._changed = threading.Condition(entries.lock)
        self._thread: threading.Thread | None = None
        self._ended = False

    def look(self) -> None:
        """Look at all models, now and when a `keep_alive` ends."""
        if self._thread is None and any(entry.keep_alive for entry in self._entries.values()):
            self._thread = threading.Thread(target=self._run, name="heddle-keep-alive", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def end(self) -> None:
        """End the thread. It does not wait for an unload in progress."""
        self._ended = True
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                kept = [
                    entry
                    for entry in self._entries.values()
                    if entry.keep_alive and entry.state is ModelState.LOADED
                ]
                for entry in kept:
                    if entry.in_flight:
                        entry.used_at = now
                due = [entry.name for entry in kept if entry.used_at + entry.keep_alive <= now]
                if not due and not self._ended:
                    ends = [entry.used_at + entry.keep_alive - now for entry in kept]
                    self._changed.wait(min(ends, default=None))
                if self._ended:
                    return
            for name in due:
                self._unloads.unload_quietly(name, "after its keep_alive")


def _hand_over(copy: Engine, tries: int, interrupted: Interrupted) -> bool:
    _log.info("%d requests go on in another copy of the model", interrupted.count)
    copy.go_on(interrupted, tries)
    return True


def _end(engine: Engine, seconds: float) -> None:
    """Close an engine. Its accepted requests may take `seconds` to finish."""
    cut = threading.Timer(seconds, engine.close)
    cut.start()
    engine.close(drain=True)
    cut.cancel()
    cut.join()  # its thread refers to the engine
