"""Measures times to first token when several clients share a long prefix, on Heddle and llama.cpp.

    python benchmarks/shared_prefix.py [MODEL]

In every round, four clients send twelve requests. Each client sends its next request when it has
its answer. All requests begin with the same 600 words, new in each round, and end with 20 different
words. llama.cpp caches prompts, as it does by default. The main figure is the 99th percentile of
the time to first token in a round; with twelve requests, this is the longest time.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from comparison import both, encoder, note, parser, save, text
from heddle.errors import HeddleError
from heddle.extensions.bench.figures import latency, ttft
from heddle.extensions.bench.other_work import OtherWork
from heddle.extensions.bench.remote import complete, complete_in_turn
from heddle.extensions.bench.side_by_side import turns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from heddle.extensions.bench.exchange import Server

CLIENTS, REQUESTS = 4, 12
PREFIX_WORDS, TAIL_WORDS, NEW_TOKENS = 600, 20, 32
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one server in one round. Times are in seconds.

    Attributes:
        prompt_tokens: prompt tokens of all requests.
        cached_tokens: prompt tokens from the cache; None if the server does not report them.
        other_work: share of the machine that other work took.
    """

    ttft_p50: float
    ttft_p99: float
    latency_p50: float
    prompt_tokens: int
    cached_tokens: int | None
    other_work: float | None


def prompts(encode: Callable[[str], list[int]], seed: str) -> list[list[int]]:
    """Token ids of the requests of a round."""
    prefix = text(PREFIX_WORDS, seed)
    return [encode(f"{prefix} {text(TAIL_WORDS, f'{seed} {index}')}") for index in range(REQUESTS)]


def measure(server: Server, lot: list[list[int]]) -> Round:
    others = OtherWork([server.pid] if server.pid is not None else [])
    streams = complete_in_turn(server, lot, CLIENTS, NEW_TOKENS)
    cached = [stream.cached_tokens for stream in streams if stream.cached_tokens is not None]
    return Round(
        ttft_p50=ttft(streams).p50,
        ttft_p99=ttft(streams).p99,
        latency_p50=latency(streams).p50,
        prompt_tokens=sum(stream.prompt_tokens for stream in streams),
        cached_tokens=sum(cached) if len(cached) == len(streams) else None,
        other_work=others.share(),
    )


def run(arguments: argparse.Namespace) -> dict[str, list[Round]]:
    encode = encoder(arguments)
    with both(arguments, CLIENTS, CONTEXT, prompt_cache=True) as servers:
        for server in servers:
            complete(server, [encode(text(50, "first"))], 2)  # reads all weights once
        rounds: dict[str, list[Round]] = {server.name: [] for server in servers}
        for index, _, server in turns(servers, ["shared prefix"], arguments.rounds, note=note):
            rounds[server.name].append(measure(server, prompts(encode, f"round {index}")))
    return rounds


def main() -> None:
    arguments = parser(__doc__).parse_args()
    try:
        rounds = run(arguments)
    except HeddleError as error:
        sys.exit(error.message)
    print(f"{'medians of rounds':20}" + "".join(f"{name:>12}" for name in rounds) + "   ratio")
    ratios = {}
    for key in ("ttft_p99", "ttft_p50", "latency_p50"):
        ours, theirs = ([getattr(one, key) for one in each] for each in rounds.values())
        each = [their / our for our, their in zip(ours, theirs, strict=True)]
        ratios[key] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        cells = "".join(f"{statistics.median(values):12.3f}" for values in (ours, theirs))
        print(f"{key + ', s':20}{cells}   {statistics.median(each):.1f}")
    results = {name: [asdict(one) for one in each] for name, each in rounds.items()}
    report = {
        "clients": CLIENTS,
        "requests": REQUESTS,
        "prefix_words": PREFIX_WORDS,
        "tail_words": TAIL_WORDS,
        "new_tokens": NEW_TOKENS,
        "times_better": ratios,
        "results": results,
    }
    print(f"result in {save(report, arguments, 'shared-prefix-')}")


if __name__ == "__main__":
    main()
