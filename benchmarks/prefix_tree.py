"""Measures the cost of the prefix tree: one thread, no model, no executor.

    python benchmarks/prefix_tree.py

The script fills a tree with prompts that share parts. No step computes their pages. Then the script
times each operation over many requests. Figures are microseconds, median and 99th percentile:

- match: look up a prompt that is in the tree except for its last 40 tokens.
- request: look up, attach, grow, publish the rest, leave: all work of the cache for one request.
- decode: publish one more token of a running sequence.
- evict: remove one leaf.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from heddle.cache.cache import Cache
from heddle.cache.page_tables import PageTable
from heddle.state import StateMemory

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 50_000
SIZES = ((1_000, 512, 256), (25_000, 512, 256), (10_000, 4096, 2048))
"""Number of prompts in the tree, tokens of each prompt, and how many of its tokens 99 other prompts
share."""


class Prompts:
    """Random prompts. Every hundred prompts share a prefix."""

    def __init__(self, tokens: int, shared: int) -> None:
        self._random = random.Random(0)
        self._tokens, self._shared = tokens, shared
        self._count = 0
        self._prefix: list[int] = []

    def next(self) -> list[int]:
        if self._count % 100 == 0:
            self._prefix = self.draw(self._shared)
        self._count += 1
        return [*self._prefix, *self.draw(self._tokens - self._shared)]

    def draw(self, count: int) -> list[int]:
        return self._random.choices(range(VOCABULARY), k=count)


def serve(cache: Cache, prompt: list[int]) -> None:
    """All work of the cache for a request that generates nothing."""
    table = PageTable()
    cache.prefixes.tick()
    cache.pages.attach(table, cache.prefixes.match(None, prompt))
    assert cache.pages.grow(table, len(prompt))
    cache.pages.copied(table)
    cache.prefixes.publish(table, prompt, len(prompt))
    cache.pages.release(table)


def timed(what: str, count: int, operation: Callable[[int], object]) -> None:
    durations = []
    for index in range(count):
        began = time.perf_counter()
        operation(index)
        durations.append((time.perf_counter() - began) * 1e6)
    durations.sort()
    median, late = statistics.median(durations), durations[int(len(durations) * 0.99)]
    print(f"  {what:8} {median:8.1f} {late:8.1f}")


def measure(prompts: int, tokens: int, shared: int) -> None:
    cache = Cache(StateMemory(prompts * (tokens // 32 + 2)))
    source = Prompts(tokens, shared)
    kept = []
    for index in range(prompts):
        prompt = source.next()
        if index % (prompts // 1000) == 0:
            kept.append(prompt)
        serve(cache, prompt)
    stats = cache.stats()
    print(f"{prompts:,} prompts of {tokens:,} tokens: {stats.nodes:,} nodes, us: median, p99")

    there = [[*prompt[:-40], *source.draw(40)] for prompt in kept]
    timed("match", 1000, lambda index: cache.prefixes.match(None, there[index]))
    timed("request", 1000, lambda index: serve(cache, there[index]))

    running, text = PageTable(), source.draw(2000)
    cache.pages.attach(running, cache.prefixes.match(None, text))
    cache.pages.grow(running, len(text))
    timed("decode", 2000, lambda index: cache.prefixes.publish(running, text, index + 1))
    timed("evict", min(10_000, stats.nodes // 2), lambda _: cache.prefixes.evict())


if __name__ == "__main__":
    for size in SIZES:
        measure(*size)
