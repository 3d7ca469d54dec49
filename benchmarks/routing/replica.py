"""One replica of the simulation: prompts in order of arrival, streams beside them, a prefix cache.

The model of time. A step computes up to `chunk` tokens of one prompt, and one token of each stream:

- a step without a prompt takes `step` + streams x `per_stream` seconds: reading the weights, then
  the caches;
- a step with a prompt takes chunk / `prefill` + streams x `per_stream` seconds: the products of the
  prompt hide the reading of the weights.

So streams slow prompts down and prompts slow streams down, and many streams share a step. Between
two events of a replica, both go on at constant speeds, so a run needs no event for each step. Short
prompts share steps: none takes a whole step of the replica, but each waits for one. A prompt waits
while `slots` streams run.

The model of the cache. It holds segments of prompts and answers, up to `cache` tokens, and forgets
the least recently used, the deepest first. A segment is held whole or not at all. Tokens of streams
count when they have ended.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.extensions.ray.routing.published import Load, Publisher

if TYPE_CHECKING:
    from routing.traffic import Conversation


@dataclass(frozen=True)
class Machine:
    """Speeds and sizes. The defaults are about a model of 70 billion parameters on eight H100.

    Its weights take 140 GB of 640 GB, a token of its cache 320 KB.

    Attributes:
        prefill: tokens of prompts per second, without streams.
        step, per_stream: seconds.
        chunk, cache: tokens.
    """

    prefill: float = 12_000.0
    step: float = 0.018
    per_stream: float = 0.0001
    chunk: int = 2048
    slots: int = 256
    cache: int = 1_300_000


class Cache:
    """A prefix cache of segments."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._segments: OrderedDict[int, int] = OrderedDict()

    def find(self, segments: list[tuple[int, int]]) -> int:
        """Tokens of the prompt that are held. They become the most recently used."""
        depth = 0
        while depth < len(segments) and segments[depth][0] in self._segments:
            depth += 1
        for prefix, _ in reversed(segments[:depth]):
            self._segments.move_to_end(prefix)
        return segments[depth - 1][1] if depth else 0

    def hold(self, segments: list[tuple[int, int]]) -> list[int]:
        """Hold a prompt. Returns the numbers of segments that were forgotten for it."""
        begins = [0, *(end for _, end in segments[:-1])]
        for (prefix, end), begin in zip(reversed(segments), reversed(begins), strict=True):
            if prefix not in self._segments:
                self._segments[prefix] = end - begin
                self.used += end - begin
            self._segments.move_to_end(prefix)
        gone = []
        while self.used > self.capacity:
            prefix, tokens = self._segments.popitem(last=False)
            self.used -= tokens
            gone.append(prefix)
        return gone


@dataclass
class Work:
    """A request at a replica. Times in seconds."""

    talk: Conversation
    arrived: float
    segments: list[tuple[int, int]]
    found: int = 0
    first_token: float = math.inf


@dataclass
class Replica:
    """One replica. `until` says when it has to be looked at next."""

    name: str
    machine: Machine
    publisher: Publisher
    alive: bool = True
    until: float = math.inf
    waiting: deque[Work] = field(default_factory=deque)
    computing: Work | None = None
    streams: list[tuple[float, int, Work]] = field(default_factory=list)  # by the step of their end

    def __post_init__(self) -> None:
        self.cache = Cache(self.machine.cache)
        self._at = 0.0
        self._steps = 0.0  # that streams have made
        self._left = 0.0  # tokens of the prompt that is computed
        self._count = 0

    @property
    def ongoing(self) -> int:
        """Requests that wait, are computed or stream: what Ray's power of two choices compares."""
        return len(self.waiting) + (self.computing is not None) + len(self.streams)

    def take(self, work: Work, now: float) -> None:
        """Queue a request."""
        self._advance(now)
        work.found = self.cache.find(work.segments)
        self.waiting.append(work)

    def events(self, now: float) -> tuple[Work | None, Work | None, list[Work]]:
        """What has happened at `now`: a prompt that began, one that ended, streams that ended."""
        self._advance(now)
        prefilled, ended = None, []
        if self.computing is not None and self._left <= 1e-6:
            prefilled, self.computing = self.computing, None
            step = self.machine.step + len(self.streams) * self.machine.per_stream
            # Earlier if the request was moved. A prompt takes a step at least.
            prefilled.first_token = min(prefilled.first_token, now + step)
            self._hold(prefilled.segments)
            talk = prefilled.talk
            self.publisher.stored(talk.key(), talk.pages)
            self._count += 1
            entry = (self._steps + talk.answer, self._count, prefilled)
            heapq.heappush(self.streams, entry)
        while self.streams and self.streams[0][0] <= self._steps + 1e-6:
            ended.append(heapq.heappop(self.streams)[2])
        began = None
        if self.computing is None and self.waiting and len(self.streams) < self.machine.slots:
            began = self.computing = self.waiting.popleft()
            began.found = min(self.cache.find(began.segments), began.segments[-1][1] - 1)
            self._left = float(began.segments[-1][1] - began.found)
        self._plan()
        return began, prefilled, ended

    def ended(self, work: Work) -> None:
        """Hold prompt and answer of a stream that has ended."""
        self._hold(work.talk.segments)

    def lose_all(self) -> list[Work]:
        """Die. Returns the requests that have to go on elsewhere."""
        lost = [*self.waiting, *(work for _, _, work in self.streams)]
        if self.computing is not None:
            lost.append(self.computing)
        self.waiting.clear()
        self.streams.clear()
        self.computing, self.until = None, math.inf
        return lost

    def load(self, now: float) -> Load:
        """What the replica publishes of its load."""
        self._advance(now)
        tokens = self._left
        clients: dict[str, int] = {}
        for work in self.waiting:
            lacks = work.segments[-1][1] - work.found
            tokens += lacks
            clients[work.talk.client] = clients.get(work.talk.client, 0) + lacks
        return Load(
            waiting_tokens=int(tokens),
            prefill_rate=self._prefill_speed(),
            models=frozenset({"model"}),
            clients=clients,
        )

    def _hold(self, segments: list[tuple[int, int]]) -> None:
        self.publisher.removed(self.cache.hold(segments))

    def _prefill_speed(self) -> float:
        machine = self.machine
        seconds = machine.chunk / machine.prefill + len(self.streams) * machine.per_stream
        return machine.chunk / seconds

    def _steps_per_second(self) -> float:
        machine = self.machine
        if self.computing is not None:
            return self._prefill_speed() / machine.chunk
        return 1.0 / (machine.step + len(self.streams) * machine.per_stream)

    def _advance(self, now: float) -> None:
        elapsed, self._at = now - self._at, now
        if self.streams:
            self._steps += elapsed * self._steps_per_second()
        if self.computing is not None:
            self._left = max(0.0, self._left - elapsed * self._prefill_speed())

    def _plan(self) -> None:
        """Set `until` to the end of the prompt that is computed, or of a stream."""
        self.until = math.inf
        if self.computing is not None:
            self.until = self._at + self._left / self._prefill_speed()
        if self.streams:
            left = max(0.0, self.streams[0][0] - self._steps)
            self.until = min(self.until, self._at + left / self._steps_per_second())
