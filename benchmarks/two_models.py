"""Shows how two busy models of one process share the compute threads.

    python benchmarks/two_models.py [MODEL] [--other MODEL] [--seconds 10]

Every model gets as many endless streams as it has slots. First each model runs alone, then both run
together, in alternating rounds. The share of a model is its rate beside the other, divided by its
rate alone. With fair turns, both shares are about one half, however long the models' steps are.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import heddle

if TYPE_CHECKING:
    from heddle.engine.streaming.blocking import Stream

ROUNDS = 3


class Load:
    """Endless streams on one model."""

    def __init__(self, engine: heddle.Engine, streams: int) -> None:
        self._engine = engine
        self._streams = streams

    def __enter__(self) -> Load:
        params = heddle.SamplingParams(ignore_eos=True, temperature=0)
        self._running: list[Stream] = [
            self._engine.stream(f"Number {number} of many stories:", params)
            for number in range(self._streams)
        ]
        while self._engine.snapshot().running < self._streams:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        for stream in self._running:
            stream.close()
        while self._engine.snapshot().running:
            time.sleep(0.01)


def rates(engines: list[heddle.Engine], seconds: float) -> list[float]:
    """Generated tokens per second of each engine, all of them busy."""
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(Load(engine, engine.config.slots))
        time.sleep(0.5)
        before = [engine.snapshot().generated_tokens for engine in engines]
        began = time.perf_counter()
        time.sleep(seconds)
        after = [engine.snapshot().generated_tokens for engine in engines]
        passed = time.perf_counter() - began
    return [(end - start) / passed for start, end in zip(before, after, strict=True)]


def main() -> None:
    """Measure, and print a table."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("model", nargs="?", default="smollm2-135m")
    options.add_argument("--other", help="default: the same model")
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--slots", type=int, default=4, help="streams of each model")
    given = options.parse_args()
    config = heddle.EngineConfig(slots=given.slots, context=4096)
    with heddle.Registry(engine=config) as registry:
        first = registry.load(given.model, name="first")
        second = registry.load(given.other or given.model, name="second")
        alone: list[list[float]] = [[], []]
        beside: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for place, engine in enumerate((first, second)):
                alone[place] += rates([engine], given.seconds)
            for place, rate in enumerate(rates([first, second], given.seconds)):
                beside[place].append(rate)
    print(
        f"{'model':>8} {'alone':>10} {'beside':>10} {'share':>7}   tokens/s, {given.slots} streams"
    )
    for name, one, two in zip(("first", "second"), alone, beside, strict=True):
        print(f"{name:>8} {median(one):10.1f} {median(two):10.1f} {median(two) / median(one):7.2f}")


if __name__ == "__main__":
    main()
