"""The events of one model that wait until the publisher sends them."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import HeddleError
from heddle.extensions.kv_events.blocks import observe
from heddle.extensions.kv_events.wire import Translator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine.loop import EngineLoop
    from heddle.engine.thread import EngineThread
    from heddle.extensions.kv_events.blocks import Blocks
    from heddle.extensions.kv_events.wire import Event

_SPARE = 1024
"""Blocks that may wait beyond two full caches."""


class Feed:
    """Observes the blocks of one engine. The engine thread fills it, and the publisher empties it.

    A feed is *broken* if it does not know what changed: at first, after a flush, and when the
    publisher was too slow. A broken feed holds nothing and ignores changes. `mend` lets the engine
    thread tell of all its blocks again; changes count from then on. The queue has room for all
    blocks twice, so this never breaks the feed again.

    Attributes:
        model: name of the model.
        thread: the engine's thread.
    """

    def __init__(
        self, model: str, thread: EngineThread, pages: int, wake: Callable[[], None]
    ) -> None:
        """`pages` is the number of pages of the cache. `wake` wakes the publisher."""
        self.model = model
        self.thread = thread
        self._broken = True
        self._mends = 0  # calls of `mend`; only the last one counts
        self._is_mending = False
        self._wake = wake
        self._room = self._most = 2 * pages + _SPARE
        self._translator = Translator(model)
        self._lock = threading.Lock()
        self._waiting: deque[Blocks | tuple[int, ...]] = deque()

    # --- the engine thread calls these -----------------------------------------------------------

    def stored(self, blocks: Blocks) -> None:
        self._append(blocks, len(blocks.hashes))

    def removed(self, hashes: Sequence[int]) -> None:
        self._append(tuple(hashes), len(hashes))

    def cleared(self) -> None:
        """Break: only the publisher's AllBlocksCleared says the same."""
        self.break_off()
        self._wake()

    def _append(self, one: Blocks | tuple[int, ...], blocks: int) -> None:
        with self._lock:
            if self._broken:
                return
            self._room -= blocks
            if self._room >= 0:
                self._waiting.append(one)
            else:
                self._break()
        self._wake()

    # --- the publisher calls these ---------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the feed is broken, and `mend` was not called since."""
        return self._broken and not self._is_mending

    def break_off(self) -> None:
        """Forget what waits, and ignore changes until `mend`."""
        with self._lock:
            self._break()

    def mend(self) -> None:
        """Let the engine thread tell of all blocks, before its next step. Returns at once.

        If the engine has ended, it has no blocks, and the feed stays as it is.
        """
        with self._lock:
            self._mends += 1
            self._is_mending = True
            begin = partial(self._begin, self._mends)
        try:
            self.thread.call_later(begin)
        except HeddleError:
            return

    def take(self, most: int) -> list[Event]:
        """Take the oldest events, of about `most` blocks."""
        taken: list[Blocks | tuple[int, ...]] = []
        with self._lock:
            while self._waiting and most > 0:
                taken.append(self._waiting.popleft())
                blocks = _count(taken[-1])
                most -= blocks
                self._room += blocks
        make = self._translator
        return [make.removed(one) if isinstance(one, tuple) else make.stored(one) for one in taken]

    def _begin(self, mends: int, loop: EngineLoop) -> None:
        with self._lock:
            if mends != self._mends:
                return  # a later call tells of all blocks
            self._break()
            self._broken = self._is_mending = False
        observe(loop.cache, self)

    def _break(self) -> None:
        self._broken = True
        self._waiting.clear()
        self._room = self._most


def _count(one: Blocks | tuple[int, ...]) -> int:
    return len(one) if isinstance(one, tuple) else len(one.hashes)
