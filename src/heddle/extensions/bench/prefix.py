"""Measures how much time a prefix cache saves, on servers side by side.

Some of the requests begin with the same prefix and end with different tails. The other requests
have the same length and share nothing. Each client sends its next request when it has its answer. A
round is a part of the requests. The servers take turns after each round, so drifts of the machine's
speed affect all servers equally. The figures of a server cover all rounds.

For two more loads, the benchmark counts tokens instead of time: the same prompt several times in a
row, and several requests at once that share a new prefix.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from heddle.extensions.bench.figures import Spread, Stream, latency, ttft
from heddle.extensions.bench.remote import complete, complete_in_turn
from heddle.extensions.bench.side_by_side import random_prompts, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.bench.exchange import Server

FORMULAS = {
    "latency": "last output - time sent, per request; percentiles over all rounds",
    "TTFT": "first output - time sent, per request; percentiles over all rounds",
    "tok/s": "output tokens / (last output - first request sent), summed over all rounds",
    "hits": "requests that found at least half of their prompt in the cache",
    "computed": "prompt tokens of all requests that were not in the cache",
    "times better": "first server against second: over all rounds (least and largest round)",
}
"""The meaning of each figure. The command prints it below the table."""

IDENTICAL = 4
BURST = 8

Round = tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class PrefixLoad:
    """A load of requests. Some requests share a prefix.

    Attributes:
        clients: number of requests at once.
        requests: number of all requests.
        rounds: number of parts of the load.
        shared: share of the requests that begin with the prefix: 0 to 1.
        prefix: number of tokens of the prefix.
        tail: number of tokens after the prefix, different in each request. Other requests have
            `prefix + tail` tokens of their own.
        new: number of tokens that each request generates.
    """

    clients: int
    requests: int
    rounds: int
    shared: float
    prefix: int
    tail: int
    new: int

    def prompts(self) -> list[list[list[int]]]:
        """The prompts of each round as token ids, in the order in which clients send them."""
        sharing = round(self.shared * self.requests)
        [prefix] = random_prompts("prefix", 1, self.prefix)
        prompts = [prefix + tail for tail in random_prompts("tails", sharing, self.tail)]
        prompts += random_prompts("others", self.requests - sharing, self.prefix + self.tail)
        random.Random("order").shuffle(prompts)
        bounds = [self.requests * index // self.rounds for index in range(self.rounds + 1)]
        return [prompts[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one server under a load.

    Attributes:
        latency, ttft: in seconds.
        rate: output tokens per second.
        hits, computed: see FORMULAS; None if the server does not report cached tokens.
    """

    requests: int
    latency: Spread
    ttft: Spread
    rate: float
    hits: int | None
    computed: int | None

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Figures:
        """The figures of all rounds together."""
        streams = list(chain.from_iterable(rounds))
        seconds = sum(
            max(stream.arrivals[-1] for stream in part) - min(stream.sent for stream in part)
            for part in rounds
        )
        cached = [each.cached_tokens for each in streams if each.cached_tokens is not None]
        told = len(cached) == len(streams)
        pairs = list(zip(streams, cached, strict=False))
        return cls(
            requests=len(streams),
            latency=latency(streams),
            ttft=ttft(streams),
            rate=sum(stream.tokens for stream in streams) / seconds,
            hits=sum(2 * n >= each.prompt_tokens for each, n in pairs) if told else None,
            computed=sum(each.prompt_tokens - n for each, n in pairs) if told else None,
        )


def run_load(
    servers: Sequence[Server], load: PrefixLoad, note: Callable[[str], None]
) -> dict[str, list[Round]]:
    """Run the load. Returns the rounds of each server, by its name. The servers take turns.

    Raises:
        PeerError: a server failed.
    """
    for server in servers:
        complete(server, random_prompts("first", 1, load.tail), 2)  # reads all weights once
    prompts = load.prompts()
    rounds: dict[str, list[Round]] = {server.name: [] for server in servers}
    for index, _, server in turns(servers, ["shared prefix"], load.rounds, note=note):
        streams = complete_in_turn(server, prompts[index], load.clients, load.new)
        rounds[server.name].append(tuple(streams))
    return rounds


def run_identical(server: Server, load: PrefixLoad) -> Figures:
    """Send one new prompt IDENTICAL times, each time after the answer to the last."""
    prompts = random_prompts("identical", 1, load.prefix + load.tail) * IDENTICAL
    return Figures.of([tuple(complete_in_turn(server, prompts, 1, load.new))])


def run_burst(server: Server, load: PrefixLoad) -> Figures:
    """Send BURST requests at once. They share a prefix that is new to the server."""
    [prefix] = random_prompts("burst", 1, load.prefix)
    prompts = [prefix + tail for tail in random_prompts("burst tails", BURST, load.tail)]
    return Figures.of([tuple(complete(server, prompts, load.new))])


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better one server was than another, over all rounds and in single rounds."""

    all: float
    min: float
    max: float

    @classmethod
    def of(cls, both: Sequence[tuple[float, float]]) -> Ratio:
        """Ratios of pairs (larger, smaller): the pair of all rounds, then a pair of each round."""
        total, *each = [larger / smaller for larger, smaller in both]
        return cls(total, min(each), max(each))


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """All results of the benchmark.

    Attributes:
        model: the first server's name for its model.
        machine: see `heddle.extensions.bench.machine.describe`.
        rounds: the rounds of the load, by server. Ratios compare the first two servers.
        identical, burst: figures of the first server.
        other_work: share of the machine that other work took during the load; None if unknown.
    """

    model: str
    machine: dict[str, Any]
    load: PrefixLoad
    rounds: dict[str, list[Round]]
    identical: Figures
    burst: Figures
    other_work: float | None

    def figures(self) -> dict[str, Figures]:
        """The figures of the load, by server."""
        return {name: Figures.of(rounds) for name, rounds in self.rounds.items()}

    def times_better(self) -> dict[str, Ratio]:
        """Ratios of the first server against the second."""
        ours, theirs = self.rounds.values()
        pairs = [(Figures.of(ours), Figures.of(theirs))]
        for our, their in zip(ours, theirs, strict=True):
            pairs.append((Figures.of([our]), Figures.of([their])))
        return {
            "latency_p50": Ratio.of([(b.latency.p50, a.latency.p50) for a, b in pairs]),
            "ttft_p50": Ratio.of([(b.ttft.p50, a.ttft.p50) for a, b in pairs]),
            "rate": Ratio.of([(a.rate, b.rate) for a, b in pairs]),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; times are in seconds."""
        return {
            "model": self.model,
            "machine": self.machine,
            "other_work": self.other_work,
            "load": asdict(self.load),
            "formulas": FORMULAS,
            "figures": {name: asdict(figures) for name, figures in self.figures().items()},
            "times_better": {name: asdict(ratio) for name, ratio in self.times_better().items()},
            "identical": asdict(self.identical),
            "burst": asdict(self.burst),
        }
