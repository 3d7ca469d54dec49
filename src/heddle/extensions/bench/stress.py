"""Stress of a server: full slots, a full queue, clients that leave, and malformed requests.

Afterwards nothing may be left over: no slot, page or task, no memory. The answer of each request
that was neither cancelled nor malformed must be the answer that the request gets alone.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.errors import PeerError
from heddle.extensions.bench.answers import COMPLETIONS, completion, read_answer, read_text
from heddle.extensions.bench.exchange import Exchange, post
from heddle.extensions.bench.isolation import canary_prompts
from heddle.extensions.bench.malformed import malformed_requests
from heddle.extensions.bench.vitals import read_vitals, settled_vitals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.isolation import CanaryPrompt
    from heddle.extensions.bench.vitals import Vitals

ANSWER_SECONDS = 600.0
"""A request without a complete answer after this time is a fault."""
MALFORMED_SECONDS = 60.0
"""A malformed request without an answer after this time is a fault."""
REFUSED_SECONDS = 120.0
"""A request that is refused as long as this, because the server is full, is a fault."""
_BUSY_SECONDS = 0.05  # before a refused request is sent again
_BUSY = {429, 503}
_PREFACES = ("", "", "Below is a list of words that a person reads aloud, again and again. ")
_CUT_BODIES = 0.1  # share of the cancelled requests whose body never arrives as a whole
_FIRST_LATENCY = 0.5  # seconds, until a request has been answered


@dataclass(frozen=True, slots=True)
class Stress:
    """The requests of a stress run.

    Attributes:
        running, waiting: slots and queue of the server. So many clients send requests.
        requests: number of all requests.
        cancelled, malformed: shares of the requests, 0 to 1.
        max_tokens: most tokens that a request generates; a request generates 1 to `max_tokens`.
        prompt_words: length of the longest prompts in words; most are much shorter.
        growth: most growth of resident memory from the first half of the requests to the second, as
            a share.
    """

    running: int = 4
    waiting: int = 8
    requests: int = 1000
    cancelled: float = 0.3
    malformed: float = 0.1
    max_tokens: int = 48
    prompt_words: int = 160
    growth: float = 0.02

    def prompts(self) -> list[CanaryPrompt]:
        """A prompt for each request, the same in every run."""
        chance = random.Random("lengths")
        lengths = [
            round(4 + (self.prompt_words - 4) * chance.random() ** 3) for _ in range(self.requests)
        ]
        prefaces = chance.choices(_PREFACES, k=self.requests)
        return canary_prompts("stress", lengths, prefaces)

    def kinds(self) -> list[str]:
        """The kind of each request: answer, cancel or malformed. In random order."""
        cancelled = round(self.cancelled * self.requests)
        malformed = round(self.malformed * self.requests)
        kinds = ["cancel"] * cancelled + ["malformed"] * malformed
        kinds += ["answer"] * (self.requests - len(kinds))
        random.Random("kinds").shuffle(kinds)
        return kinds

    def body(self, server: Server, index: int, prompt: CanaryPrompt) -> bytes:
        """The request `index`: one in two is greedy, one in two is streamed."""
        chance = random.Random(index)
        greedy, streamed = chance.random() < 0.5, chance.random() < 0.5
        fields: dict[str, Any] = {} if greedy else {"temperature": 0.9, "seed": index}
        fields |= {} if streamed else {"stream": False, "stream_options": None}
        return completion(server, prompt.text, chance.randint(1, self.max_tokens), **fields)


@dataclass(slots=True)
class StressRun:
    """The results of a stress run.

    Attributes:
        texts: complete answers, by the index of the request.
        parts: incomplete answers of cancelled requests.
        late: cancelled requests whose answer was complete before the client left.
        refused: how often a request was refused because the server was full. It was sent again.
        statuses: how often a malformed request got a status, by its kind.
        faults: events that must not happen, a line each.
        vitals: of the idle server: before the run, after the first half, after the second half.
        seconds: duration of the load.
        different: requests whose answer is not the answer that they get alone.
    """

    texts: dict[int, str] = field(default_factory=dict)
    parts: dict[int, str] = field(default_factory=dict)
    late: int = 0
    refused: int = 0
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    vitals: list[Vitals] = field(default_factory=list)
    seconds: float = 0.0
    different: list[int] = field(default_factory=list)


def run_stress(server: Server, stress: Stress, note: Callable[[str], None]) -> StressRun:
    """Send all requests in two halves; wait after each half until the server is idle.

    Raises:
        PeerError: the server cannot be reached, or does not answer a first request.
    """
    load, run = _Load(server, stress), StressRun()
    read_answer(server, asyncio.run(load.exchange(0)))  # reads all weights, starts all threads
    run.vitals.append(read_vitals(server))
    half = stress.requests // 2
    for indices in (range(half), range(half, stress.requests)):
        note(f"requests {indices.start + 1} to {indices.stop} of {stress.requests}")
        began = time.monotonic()
        asyncio.run(load.send(indices, run))
        run.seconds += time.monotonic() - began
        run.vitals.append(settled_vitals(server, run.vitals[0]))
    return run


def compare_with_solo(
    server: Server, stress: Stress, run: StressRun, note: Callable[[str], None]
) -> None:
    """Send each answered request again, alone, and note in `run` which answers are different."""
    load = _Load(server, stress)
    for place, index in enumerate(sorted(run.texts)):
        note(f"alone: request {place + 1} of {len(run.texts)}")
        try:
            answer = read_answer(server, asyncio.run(load.exchange(index)))
        except PeerError as error:
            run.faults.append(f"request {index} (alone): {error.message}")
            continue
        if answer.text != run.texts[index]:
            run.different.append(index)


class _Load:
    """The requests of a stress run on one server."""

    def __init__(self, server: Server, stress: Stress) -> None:
        self._server = server
        self._clients = stress.running + stress.waiting
        self._kinds = stress.kinds()
        self._bodies = [
            stress.body(server, index, prompt) for index, prompt in enumerate(stress.prompts())
        ]
        self._malformed = malformed_requests(server)
        self._latencies = deque([_FIRST_LATENCY], maxlen=32)

    async def exchange(self, index: int) -> Exchange:
        """Send the request `index` as a whole, and wait for the end of the response.

        Raises:
            PeerError: the server cannot be reached, or does not answer in time.
        """
        return await self._whole(post(self._server, COMPLETIONS, self._bodies[index]))

    async def send(self, indices: Sequence[int], run: StressRun) -> None:
        """Send requests, each as its kind wants. Each client sends one at a time."""
        waiting = iter(indices)
        ways = {"answer": self._answer, "cancel": self._cancel, "malformed": self._refuse}

        async def client() -> None:
            for index in waiting:
                try:
                    await ways[self._kinds[index]](index, run)
                except PeerError as error:
                    run.faults.append(f"request {index} ({self._kinds[index]}): {error.message}")

        await asyncio.gather(*(client() for _ in range(self._clients)))

    async def _answer(self, index: int, run: StressRun) -> None:
        deadline = time.monotonic() + REFUSED_SECONDS
        while (exchange := await self.exchange(index)).response().status in _BUSY:
            if time.monotonic() > deadline:
                break
            run.refused += 1
            await asyncio.sleep(_BUSY_SECONDS)
        self._latencies.append(time.perf_counter() - exchange.sent)
        run.texts[index] = read_answer(self._server, exchange).text

    async def _cancel(self, index: int, run: StressRun) -> None:
        """Leave at a random moment: in the body, while the request waits, or while it runs."""
        chance = random.Random(f"cancel {index}")
        share = chance.random() if chance.random() < _CUT_BODIES else 1.0
        seconds = chance.uniform(0.0, statistics.median(self._latencies))
        deadline = time.monotonic() + REFUSED_SECONDS
        while True:
            exchange, ended = await self._left(index, share, seconds)
            late = ended and share == 1.0  # a server may give up a body that never arrives
            if not (late and exchange.response().status in _BUSY) or time.monotonic() > deadline:
                break
            run.refused += 1
            await asyncio.sleep(_BUSY_SECONDS)
        if late:
            run.texts[index] = read_answer(self._server, exchange).text
            run.late += 1
        else:
            run.parts[index] = read_text(self._server, exchange)

    async def _left(self, index: int, share: float, seconds: float) -> tuple[Exchange, bool]:
        """Send a share of the request `index`, and leave after `seconds`.

        Returns the exchange, and whether the server had ended it before.
        """
        exchange = Exchange(self._server, post(self._server, COMPLETIONS, self._bodies[index]))
        try:
            await exchange.connect()
            exchange.send(share)
            await asyncio.wait([exchange.recorder.closed], timeout=seconds)
            return exchange, exchange.recorder.closed.done()
        finally:
            exchange.abort()

    async def _refuse(self, index: int, run: StressRun) -> None:
        kinds = list(self._malformed)
        kind = kinds[self._kinds[:index].count("malformed") % len(kinds)]  # in turn
        exchange = await self._whole(self._malformed[kind], MALFORMED_SECONDS)
        status = exchange.response().status
        run.statuses.setdefault(kind, Counter())[str(status)] += 1
        if not 400 <= status < 500:
            run.faults.append(f"request {index} (malformed, {kind}) got status {status}")

    async def _whole(self, request: bytes, seconds: float = ANSWER_SECONDS) -> Exchange:
        exchange = Exchange(self._server, request)
        await exchange.complete(seconds)
        return exchange
