"""Sends what engines do to those who look, ten times a second.

One task looks at all models while there are viewers, and makes each frame once for all of them. A
viewer that reads too slowly loses frames, and the next one says first how many steps these had.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from heddle.errors import OverloadedError
from heddle.extensions.sight.frames import Sight, requests_event, steps_event
from heddle.extensions.sight.recorder import Recorder
from heddle.server.http.connection import StreamedResponse
from heddle.server.http.encoding import EVENTS, event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.types import Send

    from heddle.engine import Engine
    from heddle.extensions.sight.recorder import Step
    from heddle.hosting.registry import Registry

MOST_VIEWERS = 32
FRAME_SECONDS = 0.1
_STATE_FRAMES = 10
"""Frames between two events of state."""
_QUEUED_FRAMES = 20


class Viewer:
    """One who looks.

    Attributes:
        admin: whether the viewer may see names of clients.
        model: the only model that the viewer looks at; empty: all.
        frames: to be sent; None is the last.
    """

    def __init__(self, model: str, *, admin: bool) -> None:
        self.model, self.admin = model, admin
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED_FRAMES)
        self._lost: dict[str, int] = {}

    def sees(self, sight: Sight) -> bool:
        """Whether the viewer looks at a model."""
        return self.model in ("", sight.name)

    def show(self, sight: Sight, steps: int, frame: bytes) -> None:
        """Queue a frame of one model: encoded events with so many steps."""
        lost = self._lost.get(sight.name, 0)
        if lost:
            frame = event(steps_event(sight.name, (), lost), "steps") + frame
        try:
            if frame:
                self.frames.put_nowait(frame)
            self._lost.pop(sight.name, None)
        except asyncio.QueueFull:
            self._lost[sight.name] = lost + steps


class Viewers:
    """All viewers of one server, and what is seen of its models."""

    def __init__(self, registry: Registry) -> None:
        self._recorders: WeakKeyDictionary[Engine, Recorder] = WeakKeyDictionary()
        self._sights: dict[str, Sight] = {}
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._registry = registry
        registry.on_loaded(self._record)

    def _record(self, _: str, engine: Engine) -> None:
        """Record what an engine does. Any thread may call this."""
        self._recorders[engine] = recorder = Recorder()
        engine.thread.call_later(recorder.begin)

    def recorder(self, engine: Engine) -> Recorder | None:
        """The record of a loaded engine."""
        return self._recorders.get(engine)

    @property
    def sights(self) -> Mapping[str, Sight]:
        """What is seen of each loaded model, by name."""
        engines = self._registry.engines
        for name, engine in engines.items():
            sight = self._sights.get(name)
            if sight is None or sight.engine is not engine:
                recorder = self._recorders.get(engine)
                if recorder is not None:
                    self._sights[name] = Sight(name, engine, recorder)
        for name in self._sights.keys() - engines.keys():
            del self._sights[name]
        return self._sights

    def add(self, viewer: Viewer, is_stopping: Callable[[], bool]) -> None:
        """Begin to send to a viewer: first, what was seen in the last minute.

        Args:
            is_stopping: whether the server stops, so that all viewers must leave.

        Raises:
            OverloadedError: there are too many viewers.
        """
        if len(self._viewers) >= MOST_VIEWERS:
            raise OverloadedError(
                f"{MOST_VIEWERS} viewers look at this server already; close one of them"
            )
        now = time.perf_counter()
        viewer.frames.put_nowait(self._hello(viewer, now))
        for sight in self.sights.values():
            self._send(sight, *sight.look(now), now, with_state=False)
            if viewer.sees(sight):
                requests = requests_event(sight.name, sight.past(), admin=viewer.admin)
                state = sight.state(now, admin=viewer.admin)
                rest = event(requests, "requests") + event(state, "state")
                viewer.show(sight, len(sight.steps), _encoded(sight, sight.steps) + rest)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            looking = self._look(is_stopping, list(self.sights.values()))
            self._task = asyncio.get_running_loop().create_task(looking)

    def remove(self, viewer: Viewer) -> None:
        """Send nothing more to a viewer."""
        self._viewers.discard(viewer)

    async def _look(self, is_stopping: Callable[[], bool], known: list[Sight]) -> None:
        """Look at all models until there is no viewer. The first viewer was told of `known`."""
        frame = 0
        while self._viewers and not is_stopping():
            await asyncio.sleep(FRAME_SECONDS)
            now, frame = time.perf_counter(), frame + 1
            sights = self.sights
            if list(sights.values()) != known:
                known = list(sights.values())
                for viewer in self._viewers:
                    _offer(viewer, self._hello(viewer, now))
            for sight in sights.values():
                self._send(sight, *sight.look(now), now, with_state=frame % _STATE_FRAMES == 0)
        self._sights.clear()  # while nobody looks, an engine that has ended must not stay
        for viewer in self._viewers:
            _end(viewer)

    def _send(
        self, sight: Sight, steps: list[Any], requests: list[Any], now: float, *, with_state: bool
    ) -> None:
        viewers = [viewer for viewer in self._viewers if viewer.sees(sight)]
        seen = _encoded(sight, steps) if viewers else b""
        for admin in {viewer.admin for viewer in viewers}:
            frame = seen
            if requests:
                frame += event(requests_event(sight.name, requests, admin=admin), "requests")
            if with_state:
                frame += event(sight.state(now, admin=admin), "state")
            for viewer in viewers:
                if viewer.admin == admin:
                    viewer.show(sight, len(steps), frame)

    def _hello(self, viewer: Viewer, now: float) -> bytes:
        models = [
            sight.described() for sight in self.sights.values() if viewer.model in ("", sight.name)
        ]
        hello = {
            "now": now,
            "unix": time.time(),
            "version": version("heddle"),
            "admin": viewer.admin,
            "models": models,
        }
        return event(hello, "hello")


class EventsOf(StreamedResponse):
    """The response to a viewer. It ends when the viewer leaves or the server stops."""

    def __init__(self, viewers: Viewers, viewer: Viewer, seconds: float | None) -> None:
        """It ends after so many seconds; None: never."""
        super().__init__(EVENTS, {"cache-control": "no-store"})
        self._viewers, self._viewer, self._seconds = viewers, viewer, seconds

    def close(self) -> None:
        self._viewers.remove(self._viewer)

    async def send_body(self, send: Send) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while (frame := await self._viewer.frames.get()) is not None:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _encoded(sight: Sight, steps: Collection[Step]) -> bytes:
    """The event of steps for a viewer who has lost none; empty without steps."""
    return event(steps_event(sight.name, steps, 0), "steps") if steps else b""


def _offer(viewer: Viewer, frame: bytes) -> None:
    """Queue a frame, or drop it: a viewer that reads slowly gets later ones."""
    if not viewer.frames.full():
        viewer.frames.put_nowait(frame)


def _end(viewer: Viewer) -> None:
    """Let a response end, after what is queued if there is room."""
    if viewer.frames.full():
        viewer.frames.get_nowait()
    viewer.frames.put_nowait(None)
