"""Publishes events over ZeroMQ in a thread of its own, and repeats those that were missed.

The publisher *starts over* whenever subscribers could not know what is cached: it sends
AllBlocksCleared, and then tells of all blocks of all models. It does so for a broken feed, for an
unloaded model, and for a subscriber that asks for batches which are no longer kept. In this last
case the sequence begins at 0 again, from which such a subscriber can follow.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.extensions.kv_events.feed import Feed
from heddle.extensions.kv_events.wire import END, AllBlocksCleared, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zmq

    from heddle.engine import Engine
    from heddle.extensions.kv_events.wire import Event

_log = logging.getLogger(__name__)

BATCH_BLOCKS = 512
"""About the most blocks of a batch: 70 KB."""

KEPT_BATCHES = 10_000
"""Most batches that are kept for subscribers that missed them, as in vLLM."""

KEPT_BYTES = 64 * 1024**2
"""Most bytes of these batches."""

QUEUED_BATCHES = 1000
"""Most batches that wait for one slow subscriber. ZeroMQ drops later ones for this subscriber,
which sees a gap in the sequence."""

RESTART_SECONDS = 10.0
"""Least time between two starts for subscribers that ask for lost batches: anyone can ask."""

_LARGEST_REQUEST = 64
"""Most bytes of a frame of a request. Its sequence number has 8."""

_JOIN_SECONDS = 2.0


class Publisher:
    """Publishes the events of all models of a server.

    Args:
        endpoint: address of the events. It listens if the address has `*` or `::`, or is a file
            (ipc://); else it connects, as vLLM does.
        replay: address for requests for missed batches; empty: none.
        name: name of the server in topics.

    Attributes:
        address: the address of the events, with the port that was chosen for `*`.
        replay_address: the address for requests; empty: none.

    Raises:
        ConfigError: ZeroMQ is not installed, an address cannot be used, or the name has an `@`.
    """

    def __init__(self, endpoint: str, replay: str, name: str) -> None:
        if "@" in name or not name:
            raise ConfigError(
                f"kv_events_id must have no @ and not be empty, got {name!r}: topics are"
                " kv@ID@MODEL. Name the server with --kv-events-id",
                param="kv_events_id",
            )
        try:
            import zmq
        except ImportError:
            raise ConfigError(
                "kv_events needs ZeroMQ; install it: pip install 'heddle[kv-events]'",
                param="kv_events",
            ) from None
        self._name = name
        self._feeds: dict[str, Feed] = {}
        self._gone: list[str] = []  # models that left, whose subscribers were not told yet
        self._lock = threading.Lock()  # of `_feeds` and `_gone`
        self._sequence = 0
        self._kept: deque[tuple[int, bytes, bytes]] = deque()  # sequence, topic, batch
        self._kept_bytes = 0
        self._restarted = -RESTART_SECONDS
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._is_awake = self._ended = False
        self._context = zmq.Context()
        self._events: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        try:
            self._events = self._open(zmq.PUB, endpoint, "kv_events")
            self.address = self._events.getsockopt_string(zmq.LAST_ENDPOINT)
            self.replay_address = ""
            if replay:
                self._replay = self._open(zmq.ROUTER, replay, "kv_events_replay")
                self.replay_address = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="heddle-kv-events", daemon=True)
        self._thread.start()

    def add(self, model: str, engine: Engine) -> None:
        """Publish the blocks of a loaded model from now on. Any thread may call this."""
        if "@" in model:
            _log.warning("no events of %r: topics are kv@ID@MODEL, and this name has an @", model)
            return
        feed = Feed(model, engine.thread, engine.snapshot().pages_total, self._wake)
        with self._lock:
            self._feeds[model] = feed
        self._wake()

    def remove(self, model: str, engine: Engine) -> None:
        """Tell subscribers that a model is gone, with all its blocks. Any thread may call this."""
        with self._lock:
            feed = self._feeds.get(model)
            if feed is None or feed.thread is not engine.thread:
                return
            del self._feeds[model]
            self._gone.append(model)
        self._wake()

    def close(self) -> None:
        """End the thread and close the sockets. Idempotent."""
        self._ended = True
        self._is_awake = False
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        try:
            while not self._ended:
                poller.poll()
                self._take_wakes()
                try:
                    self._answer_replays()
                    self._publish()
                except Exception:
                    _log.exception("events of cached blocks were not sent")
                    self._break_all()  # the next event starts over
        finally:
            self._close_sockets()

    def _publish(self) -> None:
        """Send what waits in the feeds."""
        with self._lock:
            feeds, gone = list(self._feeds.values()), self._gone
            self._gone = []
        if gone or any(feed.is_lost for feed in feeds):
            self._start_over(feeds, gone)
        for feed in feeds:
            while events := feed.take(BATCH_BLOCKS):
                self._send(feed.model, events)

    def _start_over(self, feeds: Sequence[Feed], gone: Sequence[str] = ()) -> None:
        for feed in feeds:
            feed.break_off()
        for model in dict.fromkeys([*gone, *(feed.model for feed in feeds)]):
            self._send(model, [AllBlocksCleared()])
        for feed in feeds:
            feed.mend()

    def _break_all(self) -> None:
        with self._lock:
            for feed in self._feeds.values():
                feed.break_off()

    def _send(self, model: str, events: Sequence[Event]) -> None:
        assert self._events is not None
        topic = f"kv@{self._name}@{model}".encode("utf-8", "replace")
        sequence, batch = self._sequence, packed(events)
        self._sequence += 1
        self._events.send_multipart((topic, sequence.to_bytes(8, "big"), batch))
        self._kept.append((sequence, topic, batch))
        self._kept_bytes += len(batch)
        while len(self._kept) > KEPT_BATCHES or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[2])

    # --- missed batches --------------------------------------------------------------------------

    def _answer_replays(self) -> None:
        """Answer requests for missed batches: an empty frame, and a sequence number of 8 bytes."""
        import zmq

        while self._replay is not None:
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 3 and len(frames[2]) == 8:
                self._repeat(frames[0], int.from_bytes(frames[2], "big"))
            else:
                _log.debug("a request for missed events has %d frames", len(frames))

    def _repeat(self, client: bytes, first: int) -> None:
        """Send the kept batches from number `first` on, and an end."""
        assert self._replay is not None
        is_kept = first >= self._sequence or (bool(self._kept) and self._kept[0][0] <= first)
        for sequence, topic, batch in self._kept if is_kept else ():
            if sequence >= first:
                number = sequence.to_bytes(8, "big")
                self._replay.send_multipart((client, b"", topic, number, batch))
        self._replay.send_multipart((client, b"", b"", END, b""))
        if not is_kept and time.monotonic() - self._restarted >= RESTART_SECONDS:
            self._restarted = time.monotonic()
            self._sequence = self._kept_bytes = 0
            self._kept.clear()
            with self._lock:
                feeds = list(self._feeds.values())
            self._start_over(feeds)

    # --- sockets ---------------------------------------------------------------------------------

    def _open(self, kind: int, address: str, setting: str) -> zmq.Socket[bytes]:
        import zmq

        opened: zmq.Socket[bytes] = self._context.socket(kind)
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.SNDHWM, QUEUED_BATCHES)
        if kind == zmq.ROUTER:
            opened.setsockopt(zmq.SNDHWM, 2 * KEPT_BATCHES)
            opened.setsockopt(zmq.MAXMSGSIZE, _LARGEST_REQUEST)
        listens = "*" in address or "::" in address or address.startswith("ipc://")
        port = address.rpartition(":")[2]
        try:
            if port.isdecimal() and int(port[:6]) > 65_535:  # ZeroMQ would drop its upper bits
                raise zmq.ZMQError(zmq.EINVAL)
            if listens or kind == zmq.ROUTER:
                opened.bind(address)
            else:
                opened.connect(address)
        except zmq.ZMQError as error:
            opened.close()
            raise ConfigError(
                f"{setting}: ZeroMQ cannot use the address {address!r}: {error}. Give one such as"
                " tcp://*:5557, with a free port",
                param=setting,
            ) from None
        return opened

    def _close_sockets(self) -> None:
        for one in (self._events, self._replay, self._waker, self._woken):
            if one is not None:
                one.close()
        self._context.term()

    # --- waking ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake the thread. One byte is enough until it has looked for work."""
        if not self._is_awake:
            self._is_awake = True
            try:
                self._waker.send(b"\0")
            except OSError:  # full, so that the thread wakes in any case; or closed
                return

    def _take_wakes(self) -> None:
        """Take the bytes that woke the thread. What comes from now on wakes it again."""
        try:
            while self._woken.recv(64):
                pass
        except BlockingIOError:
            pass
        self._is_awake = False
