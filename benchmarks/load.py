"""Measures how long models take to load, by phase, and their peak memory.

    python benchmarks/load.py [MODEL ...] [--rounds N] [--threads N] [--isa LEVEL]

Every load runs in a new process. The first load is not timed: it brings the file into the page
cache. Times are medians over rounds, in seconds. Memory is the resident memory of the process in
MB, with the interpreter and its libraries: `peak` is VmHWM, and `final` is VmRSS once the model is
ready.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import resource
import statistics
import time
from itertools import pairwise
from pathlib import Path

from heddle.extensions.bench.machine import describe

PHASES = ("import", "open", "tokenizer", "pack", "program")


def memory_in_use() -> dict[str, int]:
    """Bytes of memory at the peak and now; without /proc, the peak for both."""
    path = Path("/proc/self/status")
    if not path.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak": peak, "final": peak}  # macOS counts bytes, Linux kB
    kilobytes = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB", path.read_text(), re.MULTILINE))
    return {"peak": int(kilobytes["VmHWM"]) * 1024, "final": int(kilobytes["VmRSS"]) * 1024}


def load_once(model: str, threads: int, isa: str) -> dict[str, float]:
    """Seconds per phase and memory in bytes. Call it in a new process."""
    clock = [time.perf_counter()]

    from heddle.config import EngineConfig
    from heddle.executors.cpu import load as cpu
    from heddle.folders import cache_home
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.gguf.checkpoint import GGUFCheckpoint
    from heddle.weights.sources import find

    clock.append(time.perf_counter())
    file = GGUFCheckpoint.open(find(model, cache_home()).path)
    clock.append(time.perf_counter())
    tokenizer = Tokenizer.of(file.tokenizer())
    clock.append(time.perf_counter())
    packed_at: list[float] = []  # the last entry is the end of packing
    config = EngineConfig(threads=threads, isa=isa)
    executor = cpu.load(file, config, lambda _: packed_at.append(time.perf_counter()))
    clock += [packed_at[-1], time.perf_counter()]
    memory = memory_in_use()
    del tokenizer, executor  # alive until here, as in an engine
    seconds = [after - before for before, after in pairwise(clock)]
    return dict(zip(PHASES, seconds, strict=True)) | {"ready": clock[-1] - clock[0]} | memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b"]
    parser.add_argument("models", nargs="*", default=default, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="auto")
    arguments = parser.parse_args()
    machine = describe("heddle", "numpy", "tokenizers")
    print(f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}")
    names = (*PHASES, "ready", "peak", "final")
    print(f"{'model':20}" + "".join(f"{name:>10}" for name in names) + "      ratio")
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, maxtasksperchild=1) as pool:
        for model in arguments.models:
            task = (model, arguments.threads, arguments.isa)
            _, *rounds = (pool.apply(load_once, task) for _ in range(arguments.rounds + 1))
            row = {name: statistics.median(one[name] for one in rounds) for name in names}
            cells = [f"{row[name]:10.2f}" for name in (*PHASES, "ready")]
            cells += [f"{row[name] / 1e6:10.0f}" for name in ("peak", "final")]
            print(f"{model:20}{''.join(cells)}{row['peak'] / row['final']:11.2f}")


if __name__ == "__main__":
    main()
