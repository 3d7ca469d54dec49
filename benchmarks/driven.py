"""Measures threads that each drive a sequence token by token: 1, 2 and 4 of them.

    python benchmarks/driven.py [MODEL] [--rounds N] [--tokens N] [--window-us N]

Each thread calls `sample_next` in a loop. A round measures all numbers of threads, with the batch
window and without it, one after the other, so that a slow phase of the machine meets all of them.
The script prints tokens per second, as medians over the rounds, and the median, least and largest
ratio to one thread of the same round. Without the window, callers split into alternating batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from heddle.engine.driven import DrivenSequence

CALLERS = (1, 2, 4)
BARS = {2: 1.43, 4: 2.35}
GREEDY = SamplingParams(temperature=0, speculation=Speculation("off"))
PROMPTS = [
    f"def {name}(items):\n    " for name in ("sort_by_name", "count_words", "merge", "find_longest")
]


def tokens_per_second(sequences: list[DrivenSequence], tokens: int) -> float:
    """All threads sample `tokens` tokens. They begin at the same time."""
    begin = threading.Barrier(len(sequences) + 1)

    def drive(sequence: DrivenSequence) -> None:
        begin.wait()
        for _ in range(tokens):
            sequence.sample_next()

    threads = [threading.Thread(target=drive, args=(sequence,)) for sequence in sequences]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(sequences) * tokens / (time.perf_counter() - began)


def measure(engine: Engine, callers: int, tokens: int) -> float:
    """Tokens per second of new sequences. Their prompts are computed before."""
    sequences = [engine.create_sequence(GREEDY) for _ in range(callers)]
    for sequence, prompt in zip(sequences, PROMPTS, strict=False):
        sequence.decode_prompt(engine.model.tokenizer.encode(prompt))
    return tokens_per_second(sequences, tokens)


def report(name: str, rounds: list[dict[int, float]]) -> None:
    for callers in CALLERS:
        speeds = [speed[callers] for speed in rounds]
        ratios = [speed[callers] / speed[1] for speed in rounds]
        bar = f"   bar {BARS[callers]}" if callers in BARS else ""
        print(
            f"{name:16}{callers:8}{statistics.median(speeds):10.1f}"
            f"{statistics.median(ratios):8.2f}{min(ratios):8.2f}{max(ratios):8.2f}{bar}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0: all cores")
    parser.add_argument("--window-us", type=int, default=EngineConfig().batch_window_us)
    options = parser.parse_args()
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    print(f"{options.model}, {options.tokens} tokens a thread, load average before: {load}")
    print(f"{'':16}{'threads':>8}{'tok/s':>10}{'ratio':>8}{'least':>8}{'most':>8}")
    windows = (options.window_us, 0)
    config = EngineConfig(slots=max(CALLERS), threads=options.threads)
    engines = [Engine.load(options.model, replace(config, batch_window_us=us)) for us in windows]
    rounds: list[list[dict[int, float]]] = [[] for _ in windows]
    for round in range(options.rounds + 1):
        for engine, results in zip(engines, rounds, strict=True):
            speeds = {callers: measure(engine, callers, options.tokens) for callers in CALLERS}
            if round:  # the first warms up
                results.append(speeds)
    for us, engine, results in zip(windows, engines, rounds, strict=True):
        report(f"window {us} µs", results)
        engine.close()


if __name__ == "__main__":
    main()
