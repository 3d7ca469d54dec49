"""Simulates requests to a fleet. Compares Heddle's router with Ray's power of two choices.

    python benchmarks/routing/simulate.py compare   # 4 replicas, several loads: 5 minutes
    python benchmarks/routing/simulate.py vary      # other traffic, faults: 5 minutes
    python benchmarks/routing/simulate.py large     # 1,000 replicas, a million requests

The decision is the code that serves: `routing.choose`, fed by `routing.published` through
`routing.fleet`. `traffic.py`, `replica.py` and `policies.py` beside this file say what is assumed.
Replicas publish once in `PERIOD` seconds; routers hear it `LAG` seconds later.

Goodput is requests per second whose first token came within `--limit` seconds. A hit is a token of
a prompt that the cache had. "one cache" is the hit rate of a single cache with the memory of all
replicas, which sees the same requests in the same order.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import math
import resource
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from heddle.extensions.ray.routing.published import SLICES, Publisher, read
from routing.policies import Heddle, Policy, PowerOfTwo
from routing.replica import Cache, Machine, Replica, Work
from routing.traffic import Conversation, Talkers, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PERIOD, LAG, DETECTED = 1.0, 0.25, 1.0


@dataclass
class Tally:
    """What a run has counted, from the end of its warm-up on.

    Attributes:
        first_tokens: seconds to first token of the requests that ended.
        prompt, hit, hit_one: tokens of prompts; those that the replica's cache had; and one cache.
        by_replica: requests that each replica got.
    """

    first_tokens: list[float] = field(default_factory=list)
    prompt: int = 0
    hit: int = 0
    hit_one: int = 0
    by_replica: Counter[str] = field(default_factory=Counter)


class Run:
    """One simulation. `tally` has its result.

    Args:
        seconds, warm: of simulated time, in all and before anything is counted.
        dies: when the first replica dies; None: never.
    """

    def __init__(
        self,
        traffic: Traffic,
        machines: list[Machine],
        policy: Callable[[list[Replica]], Policy],
        *,
        seconds: float,
        warm: float,
        dies: float | None = None,
        seed: int = 1,
    ) -> None:
        self.replicas = {
            f"replica-{i}": Replica(f"replica-{i}", machine, Publisher(epoch=i))
            for i, machine in enumerate(machines)
        }
        self.policy = policy(list(self.replicas.values()))
        self.tally = Tally()
        self.routed = 0
        self.now = 0.0
        self._talkers = Talkers(traffic, seed)
        self._one = Cache(sum(machine.cache for machine in machines))
        self._seconds, self._warm = seconds, warm
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrivals = self._talkers.arrivals()
        self._at(next(self._arrivals), self._arrive)
        for i, replica in enumerate(self.replicas.values()):
            self._at(PERIOD * i / len(machines), lambda one=replica: self._publish(one))
        if dies is not None:
            self._at(dies, lambda: self._die("replica-0"))

    def run(self, requests: int | None = None) -> Run:
        """Simulate to the end, or until so many requests were sent in all. May be called again."""
        while requests is None or self.routed < requests:
            self.now, _, happen = heapq.heappop(self._heap)
            if self.now > self._seconds:
                break
            happen()
        return self

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), happen))

    def _arrive(self) -> None:
        self._at(next(self._arrivals), self._arrive)
        self._send(self._work(self._talkers.start()))

    def _work(self, talk: Conversation) -> Work:
        return Work(talk, self.now, list(talk.segments))

    def _send(self, work: Work, avoid: tuple[str, ...] = ()) -> None:
        name = self.policy.route(work.talk, avoid, self.now)
        self.routed += 1
        replica = self.replicas[name]
        if self.now >= self._warm:
            self.tally.by_replica[name] += 1
        if replica.alive:
            replica.take(work, self.now)
            self._look(replica)
        else:
            replica.waiting.append(work)

    def _look(self, replica: Replica) -> None:
        """Handle what happened at a replica, and come back when something will."""
        began, prefilled, ended = replica.events(self.now)
        if began is not None:
            self._begin(began)
        if prefilled is not None:
            self._one.hold(prefilled.segments)
        for work in ended:
            self._end(replica, work)
        until = replica.until
        if until < math.inf:
            self._at(until, lambda: self._look_again(replica, until))

    def _look_again(self, replica: Replica, until: float) -> None:
        if replica.alive and replica.until == until:
            self._look(replica)

    def _begin(self, work: Work) -> None:
        found = min(self._one.find(work.segments), work.segments[-1][1] - 1)
        if self.now >= self._warm:
            self.tally.prompt += work.segments[-1][1]
            self.tally.hit += work.found
            self.tally.hit_one += found

    def _end(self, replica: Replica, work: Work) -> None:
        talk = work.talk
        self._talkers.answered(talk)
        replica.ended(work)
        self._one.hold(talk.segments)
        if self.now >= self._warm:
            self.tally.first_tokens.append(work.first_token - work.arrived)
        pause = self._talkers.go_on(talk)
        if pause is not None:
            self._at(self.now + pause, lambda: self._send(self._work(talk)))

    def _publish(self, replica: Replica) -> None:
        if not replica.alive:
            return
        published = replica.publisher.publish(replica.load(self.now), now=self.now)
        self._at(self.now + LAG, lambda: self._hear(replica.name, published))
        self._at(self.now + PERIOD, lambda: self._publish(replica))

    def _hear(self, name: str, published: object) -> None:
        if isinstance(self.policy, Heddle):
            self.policy.hear(name, read(published), self.now)

    def _die(self, name: str) -> None:
        replica = self.replicas[name]
        lost = replica.lose_all()
        replica.alive = False
        self._at(self.now + DETECTED, lambda: self._detect(replica, lost))

    def _detect(self, replica: Replica, lost: list[Work]) -> None:
        self.policy.lose(replica.name)
        for work in (*lost, *replica.lose_all()):
            self._send(work, (replica.name,))


@dataclass
class Row:
    """The figures of a run."""

    goodput: float
    finished: float
    median: float
    p99: float
    hit: float
    one: float
    busiest: float

    @classmethod
    def of(cls, run: Run, limit: float, seconds: float) -> Row:
        tally = run.tally
        times = sorted(tally.first_tokens)
        routed = tally.by_replica
        return cls(
            goodput=sum(one <= limit for one in times) / seconds,
            finished=len(times) / seconds,
            median=statistics.median(times),
            p99=times[int(0.99 * len(times))],
            hit=tally.hit / tally.prompt,
            one=tally.hit_one / tally.prompt,
            busiest=max(routed.values()) / routed.total(),
        )

    def __str__(self) -> str:
        return (
            f"{self.goodput:7.2f} {self.finished:8.2f} {self.median:8.3f} {self.p99:8.2f} "
            f"{self.hit:6.1%} {self.one:9.1%} {self.hit / (self.one or 1):6.1%} {self.busiest:8.1%}"
        )


HEAD = "goodput finished TTFT p50      p99    hit one cache  ratio  busiest"


def measure(
    traffic: Traffic,
    machines: list[Machine],
    limit: float,
    seconds: float,
    *,
    routers: int = 1,
    dies: float | None = None,
) -> tuple[Row, Row]:
    """Run both routers on the same traffic. Returns Heddle's row, and that of power of two."""
    rows = []
    for policy in (lambda all_: Heddle(all_, routers), PowerOfTwo):
        warm = seconds / 3
        run = Run(traffic, machines, policy, seconds=seconds, warm=warm, dies=dies).run()
        rows.append(Row.of(run, limit, seconds - warm))
    return rows[0], rows[1]


def compare(limit: float, seconds: float) -> None:
    """Both routers on 4 replicas, at rising loads."""
    print(f"4 replicas, {Machine()}\n{Traffic()}\nfirst token within {limit} s")
    print(f"\n{'conversations/s':15} {'router':12} {HEAD}")
    best = [0.0, 0.0]
    for load in (1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16):
        traffic = replace(Traffic(), conversations=float(load))
        rows = measure(traffic, [Machine()] * 4, limit, seconds)
        for name, row in zip(("heddle", "power of two"), rows, strict=True):
            print(f"{load:15} {name:12} {row}", flush=True)
        best = [max(most, row.goodput) for most, row in zip(best, rows, strict=True)]
    print(f"\nbest goodput: heddle {best[0]:.2f}/s, power of two {best[1]:.2f}/s; ", end="")
    print(f"ratio {best[0] / best[1]:.2f}")


def vary(limit: float, seconds: float, load: float) -> None:
    """Both routers where a router of prefixes might do harm, or the assumptions are others."""
    usual, four = replace(Traffic(), conversations=load), [Machine()] * 4
    fewer = replace(usual, conversations=load / 2)
    slow, small = replace(Machine(), prefill=5000.0, step=0.024), replace(Machine(), cache=75_000)
    single = replace(usual, turns=1.0001, conversations=2 * load)
    cases: dict[str, tuple[Traffic, list[Machine], int, float | None]] = {
        "as compared": (usual, four, 1, None),
        "4 ingresses": (usual, four, 4, None),
        "own system prompts": (replace(usual, systems=0), four, 1, None),
        "nothing shared at all": (replace(single, systems=0), four, 1, None),
        "one system prompt": (replace(usual, systems=1), four, 1, None),
        "one, and single turns": (replace(single, systems=1), four, 1, None),
        "one replica is slow": (fewer, [slow, *four[1:]], 1, None),
        "one replica dies": (fewer, four, 1, seconds / 2),
        "small caches": (usual, [small] * 4, 1, None),
        "long pauses": (replace(usual, pause=120.0), four, 1, None),
        "one client": (replace(usual, clients=1), four, 1, None),
    }
    print(f"4 replicas, {load} conversations/s; half as many where a replica is slow or dies")
    print(f"\n{'case':22} {'router':12} {HEAD}")
    for case, (traffic, machines, routers, dies) in cases.items():
        rows = measure(traffic, machines, limit, seconds, routers=routers, dies=dies)
        for name, row in zip(("heddle", "power of two"), rows, strict=True):
            print(f"{case:22} {name:12} {row}", flush=True)


def large(replicas: int, requests: int) -> None:
    """Many replicas: how long a decision takes, and how much memory a router needs."""
    gc.disable()  # a router's process has not the objects of this simulation
    traffic = replace(Traffic(), conversations=1.5 * replicas, systems=100, clients=10_000)
    run = Run(traffic, [Machine()] * replicas, Heddle, seconds=math.inf, warm=60.0)
    policy = run.policy
    assert isinstance(policy, Heddle)
    fleet = policy.fleets[0]
    print(f"{replicas} replicas\n\n{'':20}    decision in us    noting", end="")
    print("\nrequests  simulated   mean median    p99     us  hashes held  hit rate")
    for part in range(1, 11):
        already = len(policy.decisions)
        run.run(requests * part // 10)
        held = sum(len(fleet.held(name)) for name in run.replicas)
        decisions, noting = (
            1e6 * np.array(one[already:]) for one in (policy.decisions, policy.noting)
        )
        rate = run.tally.hit / max(1, run.tally.prompt)
        print(f"{run.routed:8} {run.now:8.0f} s {_times(decisions)} {noting.mean():6.1f}", end="")
        print(f"{held:13}{rate:10.1%}", flush=True)
    print(f"{'in all':19} {_times(1e6 * np.array(policy.decisions))}\n")
    print(f"a router that learns all of it from publications: {_size(run):.0f} MB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak of this process, with the caches of all simulated replicas: {peak:.1f} GB")


def _times(times: NDArray[np.float64]) -> str:
    """Mean, median and 99th percentile."""
    return f"{times.mean():6.1f} {np.median(times):6.1f} {np.percentile(times, 99):6.1f}"


def _size(run: Run) -> float:
    """MB that the process grows by another router, which hears 16 publications of each replica."""
    before = _resident()
    policy = Heddle(list(run.replicas.values()))
    for number in range(SLICES):
        for replica in run.replicas.values():
            published = replica.publisher.publish(replica.load(run.now), now=run.now + number)
            policy.hear(replica.name, read(published), run.now + number)
    return _resident() - before


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("compare", "vary", "large"))
    parser.add_argument("--limit", type=float, default=2.0, help="of the first token, in seconds")
    parser.add_argument("--seconds", type=float, default=900.0, help="of simulated time")
    parser.add_argument("--load", type=float, default=6.0, help="conversations/s of vary")
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.what == "compare":
        compare(arguments.limit, arguments.seconds)
    elif arguments.what == "vary":
        vary(arguments.limit, arguments.seconds, arguments.load)
    else:
        large(arguments.replicas, arguments.requests)


if __name__ == "__main__":
    main()
