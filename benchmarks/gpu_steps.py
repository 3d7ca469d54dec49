"""Steps of a model on a torch device, without server and scheduler: decode and prompts.

    python benchmarks/gpu_steps.py dense.gguf [--device cuda] [--streams 1,64] [--depths 0,1024]
        [--prompts 512,2048,4096] [--no-graphs] [--profile]

Keys and values are random. In decode, a step is submitted before the one before it is collected, as
the engine does. `--profile` lists kernels by time, of steps without graphs.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from heddle.config import EngineConfig
from heddle.extensions.torch import load
from heddle.extensions.torch.settings import TorchSettings
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS
from heddle.step import UNKNOWN, Binding, Chunk, StepPlan
from heddle.weights.formats import open_checkpoint

STEPS, PROMPTS, KERNELS = 24, 4, 14
GREEDY = SamplingParams(temperature=0, seed=0)


def waited() -> float:
    """The time when the device has done all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Steps:
    """Makes steps of sequences of equal depth, each with pages of its own."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        with torch.inference_mode():
            for layer in range(len(executor._program.pages.places)):
                for part in executor._program.pages.parts(layer):
                    part.fields[0].normal_()

    def plan(self, streams: int, start: int, *, first: bool, count: int = 1) -> StepPlan:
        """`first`: the slots are bound to new sequences. Else the step before samples the token."""
        pages = self._executor.memory.pages // streams
        held = -(-(start + count) // PAGE_TOKENS)
        assert held <= pages, "the KV cache is too small"
        tokens = [1] * count if first else [UNKNOWN]
        chunks = tuple(
            Chunk(slot, start, tokens, [*range(slot * pages, slot * pages + held)], True)
            for slot in range(streams)
        )
        bindings = tuple(Binding(slot, GREEDY, [1], []) for slot in range(streams) if first)
        return StepPlan(bindings, chunks)

    def decode(self, streams: int, depth: int) -> float:
        """The median seconds of a step."""
        plans = [self.plan(streams, depth + step, first=step == 0) for step in range(STEPS)]
        self._executor.submit(plans[0])
        ends = []
        for plan in plans[1:]:
            self._executor.submit(plan)
            self._executor.collect()
            ends.append(time.perf_counter())
        self._executor.collect()
        gaps = sorted(end - begin for begin, end in pairwise(ends))
        return gaps[len(gaps) // 2]

    def prompt(self, tokens: int) -> float:
        """The least seconds of a step with one prompt."""
        found = []
        for _ in range(PROMPTS):
            began = time.perf_counter()
            self.run(self.plan(1, 0, first=True, count=tokens))
            found.append(time.perf_counter() - began)
        return min(found)

    def run(self, plan: StepPlan) -> None:
        self._executor.submit(plan)
        self._executor.collect()


def profile(executor: Any, steps: Steps) -> None:
    """Kernels of a decode step of few and of many streams, and of a prompt."""
    executor._program._graphs._graphs.clear()
    for name, streams, start, count in (
        ("1 stream at 1,024", 1, 1024, 1),
        ("64 streams at 1,024", 64, 1024, 1),
        ("prompt of 2,048", 1, 0, 2048),
    ):
        plan = steps.plan(streams, start, first=True, count=count)
        steps.run(plan)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
            steps.run(plan)
            waited()
        events = recorded.key_averages()
        events = sorted(events, key=lambda event: -event.self_device_time_total)
        total = sum(event.self_device_time_total for event in events)
        print(f"{name}: kernels take {total / 1e3:.3f} ms")
        for event in events[:KERNELS]:
            own = event.self_device_time_total
            print(f"  {own:9.1f} us {event.count:5} {own / total:6.1%} {event.key[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--depths", default="0,1024")
    parser.add_argument("--prompts", default="512,2048,4096")
    parser.add_argument("--kv-cache", type=int, default=24 << 30)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    streams, depths, prompts = (
        [int(number) for number in text.split(",")]
        for text in (given.streams, given.depths, given.prompts)
    )
    config = EngineConfig(
        slots=max(streams),
        kv_cache=given.kv_cache,
        batch_tokens=max(prompts),
        context=max(*depths, *prompts) + 256,
        speculation="off",
        device=given.device,
        prefix_cache=False,
    )
    config = config.having(TorchSettings(cuda_graphs=not given.no_graphs))
    began = time.perf_counter()
    executor = load.load(
        open_checkpoint(given.path), config, samples_on_device=True, runs_ahead=True
    )
    print(f"loaded in {waited() - began:.1f} s: {executor.summary}", flush=True)
    began = time.perf_counter()
    executor.warm_up(lambda done: None)
    print(f"warm-up of {executor.warm_ups} parts in {waited() - began:.1f} s", flush=True)
    steps = Steps(executor)
    for depth in depths:
        for count in streams:
            steps.decode(count, depth)
            taken = steps.decode(count, depth)
            line = f"decode at {depth}, {count} streams: {1e3 * taken:.3f} ms a step"
            print(f"{line}, {count / taken:,.0f} tokens/s", flush=True)
    for tokens in prompts:
        taken = steps.prompt(tokens)
        print(
            f"prompt of {tokens}: {1e3 * taken:.2f} ms, {tokens / taken:,.0f} tokens/s", flush=True
        )
    if given.profile:
        profile(executor, steps)


if __name__ == "__main__":
    main()
