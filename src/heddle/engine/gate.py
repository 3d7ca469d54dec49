"""Whether an engine accepts requests, and why not."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.errors import EngineClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.engine.health import Poison
    from heddle.errors import HeddleError


class Gate:
    """The lock of an engine. It guards everything that callers and the engine thread share.

    The methods that change the gate need the lock. Reading an attribute does not.

    Attributes:
        lock: the lock.
        refusal: why the engine accepts no more requests; None: it accepts them.
        poison: the failure that ended the engine, or None.
        drain: whether a closed engine finishes its requests.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.refusal: HeddleError | None = None
        self.poison: Poison | None = None
        self.drain = False
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether the engine accepts no more requests."""
        return self.refusal is not None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the engine's process.

        A fork has no engine thread, and its copy of the lock may be locked for ever.
        """
        return self._pid != os.getpid()

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Hold the lock. If the engine accepts no more requests, raise the reason instead."""
        if self._pid != os.getpid():  # first: the fork's copy of the lock may be locked
            raise EngineClosedError(
                "this process is a fork, and a fork has no engine thread. Load an engine in each"
                " process, or spawn processes"
            )
        with self.lock:
            if self.refusal is not None:
                raise type(self.refusal)(self.refusal.message)
            yield

    def close(self, *, drain: bool) -> None:
        """Accept no more requests. A close without `drain` ends a close with it, not vice versa."""
        self.drain = drain and (self.refusal is None or self.drain)
        self.refuse(EngineClosedError("the engine is closed"))

    def refuse(self, error: HeddleError) -> None:
        """Accept no more requests, because of `error` unless there is an earlier reason."""
        if self.refusal is None:
            self.refusal = error
