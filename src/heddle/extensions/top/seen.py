"""What was seen of the engines of a server in the last half minute."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from heddle.extensions.top.feed import Loss

if TYPE_CHECKING:
    from heddle.extensions.top.feed import Event

SECONDS = 30.0
_MOST = 4096


class Work(NamedTuple):
    """What one step computed in one slot."""

    began: float
    ended: float
    decode: int
    guesses: int
    right: int


class Step(NamedTuple):
    """A step: its milliseconds, and its tokens."""

    began: float
    ended: float
    ms: float
    prefill: int
    decode: int


class SeenModel:
    """What was seen of one model.

    Attributes:
        sizes: its entry in the event `hello`.
        state: the last event `state`; empty before the first.
        requests: those that run or wait, by id.
        work: by slot, the oldest first.
    """

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.sizes = sizes
        self.state: dict[str, Any] = {}
        self.requests: dict[int, dict[str, Any]] = {}
        self.steps: deque[Step] = deque(maxlen=_MOST)
        self.work: defaultdict[int, deque[Work]] = defaultdict(lambda: deque(maxlen=_MOST))

    @property
    def running(self) -> dict[int, dict[str, Any]]:
        """The requests that hold a slot, by slot."""
        return {one["slot"]: one for one in self.requests.values() if one["slot"] is not None}

    def add_steps(self, steps: list[Any]) -> None:
        """Take the steps of an event."""
        for _, ended, ms, rows in steps:
            began, tokens = ended - ms / 1e3, [0, 0]
            for slot, _, decode, _, count, guesses, right in rows:
                tokens[decode] += count
                self.work[slot].append(Work(began, ended, decode, guesses, right))
            self.steps.append(Step(began, ended, ms, *tokens))

    def add_requests(self, requests: list[dict[str, Any]]) -> None:
        """Take the requests of an event."""
        for one in requests:
            self.requests[one["id"]] = one
            if one["state"] == "done":
                del self.requests[one["id"]]

    def forget(self, now: float) -> None:
        """Drop what ended long ago."""
        _drop(self.steps, now - SECONDS)
        for work in self.work.values():
            _drop(work, now - SECONDS)


class Seen:
    """What was seen of a server.

    Attributes:
        trouble: why no events come now; empty: they come.
        lost: steps that this viewer did not get.
    """

    def __init__(self) -> None:
        self.version, self.trouble, self.lost = "", "", 0
        self.models: dict[str, SeenModel] = {}
        self._ahead = 0.0

    @property
    def now(self) -> float:
        """The server's clock."""
        return time.monotonic() + self._ahead

    @property
    def is_complete(self) -> bool:
        """Whether each model has shown its state."""
        return bool(self.version) and all(one.state for one in self.models.values())

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Loss):
            self.trouble = event.reason
            self.models.clear()
            return
        name, data = event
        if name == "hello":
            self._greet(data)
        elif (model := self.models.get(data["model"])) is not None:
            self._take(name, model, data)

    def _greet(self, hello: dict[str, Any]) -> None:
        self.version, self.trouble = hello["version"], ""
        self._ahead = hello["now"] - time.monotonic()
        known = {name: one for name, one in self.models.items() if one.sizes in hello["models"]}
        self.models = {
            one["name"]: known.get(one["name"]) or SeenModel(one) for one in hello["models"]
        }

    def _take(self, name: str, model: SeenModel, data: dict[str, Any]) -> None:
        if name == "steps":
            self.lost += data["lost"]
            model.add_steps(data["steps"])
        elif name == "requests":
            model.add_requests(data["requests"])
        elif name == "state":
            model.state = data
            model.forget(data["t"])


def _drop(queue: deque[Step] | deque[Work], oldest: float) -> None:
    while queue and queue[0].ended < oldest:
        queue.popleft()
