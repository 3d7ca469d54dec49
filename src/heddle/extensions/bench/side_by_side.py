"""Compares two servers under the same loads in alternating rounds.

Both servers stay up. In every round, each scenario runs on one server and then on the other. The
order changes from round to round, so drifts of the machine's speed affect both servers equally.
Only one server works at a time. Prompts are random token ids, the same for both servers and new for
every request of every run, so that a prompt cache has no effect.
"""

from __future__ import annotations

import random
import secrets
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError
from heddle.extensions.bench.figures import (
    decode_rates,
    itl,
    overlap,
    prompt_rate,
    request_rate,
    tpot,
    ttft,
)
from heddle.extensions.bench.other_work import OtherWork
from heddle.extensions.bench.remote import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.figures import Stream

_TOKEN_IDS = range(1_000, 20_000)  # ordinary tokens in every vocabulary served
_SETTLE_SECONDS = 0.2  # until the threads of the last server sleep
_LEAST_OVERLAP = 0.5
_MOST_DOUBLINGS = 5

Metrics = dict[str, float]
Rounds = dict[str, dict[str, list[Metrics]]]
"""Scenario -> server -> metrics of each round, with `other_work` if it is known."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`streams` requests at once, each with `prompt` prompt tokens and `new` tokens to generate.

    With `new` = 1, a scenario measures prefill; otherwise decode. Decode begins when the last
    prompt is computed, and some servers compute prompts slowly while other streams run. If all
    streams run together for too short a time, the benchmark raises `new` before the first round.
    """

    streams: int
    prompt: int
    new: int

    @property
    def name(self) -> str:
        """A name such as `decode x4 at 128`."""
        kind = "prompt" if self.new == 1 else "decode"
        return f"{kind} x{self.streams} at {self.prompt}"

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that a table shows, in tokens per second."""
        return ("prompt_tok_s",) if self.new == 1 else ("decode_tok_s", "request_tok_s")

    def metrics(self, streams: Sequence[Stream]) -> Metrics:
        """Metrics by the formulas of `figures`, latencies in milliseconds.

        Raises:
            ValueError: the streams did not run at the same time for long enough.
        """
        first = {"ttft_p50_ms": 1e3 * ttft(streams).p50, "ttft_max_ms": 1e3 * ttft(streams).max}
        if self.new == 1:
            return {"prompt_tok_s": prompt_rate(streams)} | first
        gaps = itl(streams)
        return {
            "decode_tok_s": decode_rates(streams)[0],
            "request_tok_s": request_rate(streams),
            "tpot_p50_ms": 1e3 * tpot(streams).p50,
            "itl_p50_ms": 1e3 * gaps.p50,
            "itl_p99_ms": 1e3 * gaps.p99,
            "itl_max_ms": 1e3 * gaps.max,
            **first,
        }


def alternate(
    servers: Sequence[Server],
    scenarios: Sequence[Scenario],
    rounds: int,
    *,
    seconds: float = float("inf"),
    note: Callable[[str], None] = lambda text: None,
) -> tuple[list[Scenario], Rounds]:
    """Run `rounds` rounds, or fewer if `seconds` are over; at least one round.

    `note` gets a line about each measurement. Returns the metrics, and the scenarios with the
    final number of new tokens.

    Raises:
        PeerError: a server failed.
        ConfigError: the streams of a scenario do not run at the same time for long enough.
    """
    run = secrets.token_hex(4)
    scenarios = [_long_enough(scenario, servers, run, note) for scenario in scenarios]
    by_name = {scenario.name: scenario for scenario in scenarios}
    results: Rounds = {name: {server.name: [] for server in servers} for name in by_name}
    for index, name, server in turns(servers, list(by_name), rounds, seconds=seconds, note=note):
        results[name][server.name].append(_measure(server, by_name[name], f"{run} {index}"))
    return scenarios, results


def turns(
    servers: Sequence[Server],
    loads: Sequence[str],
    rounds: int,
    *,
    seconds: float = float("inf"),
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[int, str, Server]]:
    """The turns (round, load and server) of all rounds; see `alternate`.

    Pauses before each turn, until the threads of the last server sleep.
    """
    start = time.monotonic()
    for index in range(rounds):
        began = time.monotonic()
        for load in loads:
            for server in servers[:: 1 if index % 2 == 0 else -1]:
                note(f"round {index + 1} of {rounds}: {load}, {server.name}")
                time.sleep(_SETTLE_SECONDS)
                yield index, load, server
        now = time.monotonic()
        if now - start + (now - began) > seconds:
            break


def _long_enough(
    scenario: Scenario, servers: Sequence[Server], run: str, note: Callable[[str], None]
) -> Scenario:
    """The scenario with enough new tokens: on each server, half of the outputs overlap.

    `run` seeds the prompts.
    """
    for doubling in range(_MOST_DOUBLINGS + 1):
        note(f"trying {scenario.name} with {scenario.new} new tokens")
        prompts = random_prompts(
            f"{scenario.name} {run} trial {doubling}", scenario.streams, scenario.prompt
        )
        trials = [complete(server, prompts, scenario.new) for server in servers]
        if scenario.new == 1 or min(map(overlap, trials)) >= _LEAST_OVERLAP:
            return scenario
        scenario = replace(scenario, new=2 * scenario.new)
    raise ConfigError(
        f"{scenario.name}: the streams hardly run at the same time; make the prompts shorter"
    )


def _measure(server: Server, scenario: Scenario, seed: str) -> Metrics:
    prompts = random_prompts(f"{scenario.name} {seed}", scenario.streams, scenario.prompt)
    others = None if server.pid is None else OtherWork([server.pid])
    streams = complete(server, prompts, scenario.new)
    share = None if others is None else others.share()
    try:
        metrics = scenario.metrics(streams)
    except ValueError as error:
        raise ConfigError(f"{scenario.name} on {server.name}: {error}") from None
    return metrics if share is None else metrics | {"other_work": share}


def random_prompts(seed: str, count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` token ids, the same for the same seed."""
    generator = random.Random(seed)
    return [generator.choices(_TOKEN_IDS, k=length) for _ in range(count)]


def summarise(results: Rounds) -> dict[str, Any]:
    """Medians over rounds for each scenario and server, and ratios of the first two servers.

    A ratio compares two measurements of the same round: its median, least and largest over rounds.
    There is none to a zero: tokens that a step guessed right arrive at once, so a gap may be zero.
    """
    summary: dict[str, Any] = {}
    for scenario, by_server in results.items():
        summary[scenario] = {
            server: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            for server, rounds in by_server.items()
        }
        if len(by_server) > 1:
            ours, theirs = list(by_server.values())[:2]
            summary[scenario]["ratio"] = _ratios(ours, theirs)
    return summary


def _ratios(ours: Sequence[Metrics], theirs: Sequence[Metrics]) -> dict[str, dict[str, float]]:
    ratios = {}
    for key in ours[0]:
        if key != "other_work" and all(their[key] for their in theirs):
            pairs = zip(ours, theirs, strict=True)
            each = [our[key] / their[key] for our, their in pairs]
            ratios[key] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
    return ratios


def most_other_work(results: Rounds) -> float | None:
    """Largest share of the machine that other work took in a measurement; None if unknown."""
    shares = [
        metrics["other_work"]
        for by_server in results.values()
        for rounds in by_server.values()
        for metrics in rounds
        if "other_work" in metrics
    ]
    return max(shares, default=None)


def table(summary: dict[str, Any], scenarios: Sequence[Scenario]) -> str:
    """The headline figures, in tokens per second, as aligned text."""
    servers = [column for column in summary[scenarios[0].name] if column != "ratio"]
    width = max(12, *(len(server) + 2 for server in servers))
    lines = [f"{'tokens/s':26}" + "".join(f"{server:>{width}}" for server in servers)]
    if len(servers) > 1:
        lines[0] += f"{'ratio':>8}  (min to max)"
    for scenario in scenarios:
        row = summary[scenario.name]
        for key in scenario.headline:
            label = scenario.name if key == scenario.headline[0] else "  prompts included"
            line = f"{label:26}" + "".join(f"{row[name][key]:{width}.1f}" for name in servers)
            if "ratio" in row:
                ratio = row["ratio"][key]
                line += f"{ratio['median']:8.2f}  ({ratio['min']:.2f} to {ratio['max']:.2f})"
            lines.append(line)
    return "\n".join(lines)
