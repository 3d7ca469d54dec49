"""What adapters cost: steps of one model with and without them, in turn.

    python benchmarks/write_dense.py small.gguf --type q4_k_m --sizes 1.5b --layers 28
    python benchmarks/adapter_cost.py small.gguf

Each line has the rate of steps with adapters against the same steps without, measured in pairs. All
products of a layer are adapted, with random matrices of rank 16. `company` is a step in which one
of two sequences has an adapter, against one without: what the other sequence waits longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.state import PAGE_TOKENS
from heddle.step import AdapterUse, Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.executors.adapting import Adapter
    from heddle.executors.cpu.executor import CpuExecutor

SLOTS, PROMPT, PAIRS = 8, 512, 15
PAGES = 1 + PROMPT // PAGE_TOKENS


def random_adapter(executor: CpuExecutor, rank: int, kind: TensorType, seed: int) -> Adapter:
    stream = np.random.default_rng(seed)
    changes = {}
    for name, one in executor.adaptable().items():
        if name in ("embedding", "output"):  # as in most adapters, these stay
            continue
        a, b = (
            (stream.standard_normal(shape) * 0.01).astype(np.float32)
            for shape in ((rank, one.in_features), (one.out_features, rank))
        )
        changes[name] = LowRank(a, b, 2.0, kind)
    return executor.make_adapter(changes)


def chunk(slot: int, start: int, count: int, adapters: Sequence[Adapter]) -> Chunk:
    pages = range(slot * PAGES, (slot + 1) * PAGES)
    tokens = [(7 * i + slot) % 1000 for i in range(count)]
    uses = [AdapterUse(one) for one in adapters]
    return Chunk(slot, start, tokens, pages, True, adapters=uses)


def seconds(executor: CpuExecutor, chunks: Sequence[Chunk], steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        executor.logits(StepPlan((), tuple(chunks)))
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", choices=("F32", "I8"), default="F32", help="I8: --lora-type int8")
    given = parser.parse_args()
    config = EngineConfig(slots=SLOTS, batch_tokens=PROMPT, context=PROMPT + PAGE_TOKENS)
    executor = load(GGUFCheckpoint.open(given.model), config)
    kind = TensorType[given.type]
    adapters = [random_adapter(executor, given.rank, kind, seed) for seed in range(SLOTS)]
    print(f"{executor.summary}; an adapter of rank {given.rank}: {adapters[0].bytes / 1e6:.1f} MB")
    decode = {
        f"{n} streams, {kind}": (
            [chunk(i, 64, 1, [] if not of(i) else [adapters[of(i) - 1]]) for i in range(n)],
            [chunk(i, 64, 1, []) for i in range(n)],
            6,
        )
        for n, kind, of in (
            (1, "one adapter", lambda i: 1),
            (2, "company", lambda i: i),
            (4, "one adapter", lambda i: 1),
            (8, "one adapter", lambda i: 1),
            (8, "an adapter each", lambda i: i + 1),
        )
    }
    prompt = [chunk(0, 0, PROMPT, adapters[:1])], [chunk(0, 0, PROMPT, [])], 1
    for name, (with_them, without, steps) in {**decode, f"{PROMPT} prompt tokens": prompt}.items():
        ratios, rates = [], []
        for _ in range(PAIRS):
            one, other = (seconds(executor, each, steps) for each in (with_them, without))
            ratios.append(other / one)
            rates.append(1 / other)
        low, high = sorted(ratios)[2], sorted(ratios)[-3]
        rate = statistics.median(rates)
        print(
            f"{name:28} {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}) of"
            f" {rate:.2f} steps/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
