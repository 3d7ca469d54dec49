"""Measures what viewers of `GET /v1/engine/events` cost the streams of a server.

    python benchmarks/viewers.py [MODEL] [--streams 8] [--rounds 10] [--seconds 4]

A server runs in a process of its own, and its streams never end. A round measures each number of
viewers, one after the other; the next round goes the other way, so that a slow phase of the machine
and longer contexts meet all of them. Viewers are processes of curl. The time of a step is that from
the end of the step before, so what the server does between steps counts, too. All compares with no
viewer within the same round: the script prints medians over rounds, and the range of their middle
half. If that range is wider than the bar, the machine was not quiet. By default it takes less than
three minutes.

Beside other work on the machine, ratios of steps say little. So the script prints the processor
time of the thread that serves viewers and streams, too: what viewers add, as a part of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

VIEWERS = (0, 1, 4)
BAR = 0.01


@contextmanager
def server(model: list[str]) -> Iterator[tuple[str, int]]:
    """The address of a server, and its process id."""
    command = [sys.executable, "-m", "heddle", "serve", *model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = next(line for line in process.stdout if line.startswith("ready"))
            yield ready.split()[1].removesuffix("/v1"), process.pid
        finally:
            process.kill()


def read(url: str, number: int) -> None:
    """Read an endless stream until the server ends it."""
    prompt = f"Number {number} of many stories:"
    body = {"prompt": prompt, "ignore_eos": True, "max_tokens": 8000, "stream": True}
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as answer:
            for _ in answer.iter_raw():
                pass
    except httpx.HTTPError:
        pass  # the server was stopped


def events(url: str) -> tuple[list[Any], int]:
    """The steps of the last minute, and how many requests run."""
    text = httpx.get(f"{url}/v1/engine/events?seconds=0.05", timeout=60).text
    data: dict[str, list[Any]] = defaultdict(list)
    for block in text.strip().split("\n\n"):
        name, line = block.split("\n", 1)
        data[name.removeprefix("event: ")].append(json.loads(line.removeprefix("data: ")))
    steps = [step for frame in data["steps"] for step in frame["steps"]]
    return steps, data["state"][-1]["running"]


def serving_ms(pid: int) -> float:
    """The milliseconds of processor time of a process's first thread, which serves."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def measure(url: str, pid: int, viewers: int, seconds: float) -> tuple[float, float]:
    """The median milliseconds of a step while viewers look, and those that the server serves."""
    with ExitStack() as stack:
        for _ in range(viewers):
            command = ["curl", "-sNo", "/dev/null", f"{url}/v1/engine/events"]
            stack.callback(stack.enter_context(subprocess.Popen(command)).kill)
        time.sleep(0.5)
        first = events(url)[0][-1][0]
        spent = -serving_ms(pid)
        time.sleep(seconds)
        spent += serving_ms(pid)
        steps, _ = events(url)
    ends = [end for number, end, _, _ in steps if number > first]
    gaps = [1e3 * (after - before) for before, after in pairwise(ends)]
    return statistics.median(gaps), spent / len(gaps)


def middle_of(parts: list[float]) -> str:
    """The median in percent, and the range of the middle half."""
    low, middle, high = statistics.quantiles(parts, n=4)
    return f"{middle:+.2%} ({low:+.2%} to {high:+.2%})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what viewers cost.")
    parser.add_argument("model", nargs="*")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    steps: dict[int, list[float]] = defaultdict(list)
    serving: dict[int, list[float]] = defaultdict(list)
    with server(options.model) as (url, pid):
        for number in range(options.streams):
            threading.Thread(target=read, args=(url, number), daemon=True).start()
        while events(url)[1] < options.streams:
            time.sleep(0.1)
        for place in range(options.rounds):
            for viewers in VIEWERS if place % 2 else reversed(VIEWERS):
                step, spent = measure(url, pid, viewers, options.seconds)
                steps[viewers].append(step)
                serving[viewers].append(spent)
    for viewers in VIEWERS:
        step = statistics.median(steps[viewers])
        longer = [one / none - 1 for one, none in zip(steps[viewers], steps[0], strict=True)]
        added = [one - none for one, none in zip(serving[viewers], serving[0], strict=True)]
        parts = [one / none for one, none in zip(added, steps[0], strict=True)]
        print(
            f"{viewers} viewers: {step:.2f} ms a step, {1e3 * options.streams / step:.0f} tokens/s,"
            f" {middle_of(longer)} longer than with none; serving takes"
            f" {statistics.median(serving[viewers]):.3f} ms, {middle_of(parts)} of a step more"
        )
    print(f"bar: {BAR:.0%} of a step for one viewer")


if __name__ == "__main__":
    main()
