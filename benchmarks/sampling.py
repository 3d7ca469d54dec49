"""Measures the cost of sampling: eight slots, a large vocabulary and two threads, as in a step.

    python benchmarks/sampling.py [MODEL]

The rows are logits of a real model (by default qwen2.5-coder-1.5b, 152,000 tokens) after eight
prompts, and logits of a normal distribution, which are flat: the worst case. Every case is a step
of a program that only samples. Figures are medians in microseconds for all eight slots, minus the
time of a step without samplers.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle import _native
from heddle.config import EngineConfig
from heddle.executors.cpu.samplers import make_sampler
from heddle.loading.load import load_model
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, StepPlan
from heddle.token_rules import TokenRules
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOTS, THREADS, STEPS = 8, 2, 40
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a",
    "import numpy as np\n\nx = np.",
    "The answer to the question of life is",
    "SELECT name, COUNT(*) FROM users GROUP",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the beginning",
)
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 40": {"temperature": 0.8, "top_k": 40},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "top_k 40, top_p 0.95, min_p 0.05": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "the same with penalties": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, **PENALTIES},
    "top_p 0.95 with penalties": {"top_p": 0.95, **PENALTIES},
    "DRY, min_p 0.05": {"dry_multiplier": 0.8, "min_p": 0.05},
    "XTC, min_p 0.05": {"xtc_probability": 0.5, "min_p": 0.05},
    "mirostat 2": {"mirostat": 2},
    "top_n_sigma 1": {"top_n_sigma": 1.0},
    "dynamic temperature": {"dynatemp_range": 0.5},
    "top_p 0.99": {"top_p": 0.99},
    "typical_p 0.9": {"typical_p": 0.9},
}


def real_logits(name: str) -> tuple[NDArray[np.float32], TokenRules]:
    """Logits (SLOTS, vocabulary) after the prompts, and the rules of DRY's default breakers."""
    model = load_model(name, EngineConfig(threads=THREADS, slots=SLOTS))
    greedy, chunks = SamplingParams(temperature=0.0, seed=0), []
    bindings = []
    for slot, text in enumerate(PROMPTS):
        tokens = model.tokenizer.encode(text)
        bindings.append(Binding(slot, greedy, tokens, []))
        chunks.append(Chunk(slot, 0, tokens, [slot], sample=True))
    logits = model.executor.logits(StepPlan(tuple(bindings), tuple(chunks)))  # type: ignore[attr-defined]
    rules = TokenRules(breakers=model.tokenizer.breakers(greedy.dry_sequence_breakers))
    model.close()
    return logits, rules


class Step:
    """A program that copies rows of logits and samples from them."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._runtime = _native.Runtime(THREADS, "auto")
        self._cache = _native.KvCache("f16", 1, 1, 16, 1)
        self._program = _native.Program(self._runtime, (self._cache,), SLOTS, SLOTS)
        table, rows = (self._program.buffer(logits.shape[1], per_row=row) for row in (False, True))
        raw = np.ascontiguousarray(logits).view(np.uint8).ravel()
        matrix = _native.Matrix(  # type: ignore[call-arg]
            _native.Arena(),
            self._runtime,
            int(TensorType.F32),
            raw,
            *logits.shape,
            np.empty(0, np.float32),
        )
        self._program.embed(matrix, table)
        self._program.take_rows(table, rows)
        self._program.sample(rows)

    def microseconds(self, samplers: list[_native.Sampler]) -> float:
        slots, nothing = np.arange(SLOTS, dtype=np.int32), np.empty(0, np.int32)
        times = []
        for _ in range(STEPS):
            before = self._program.seconds
            no_spans = np.empty((0, 5), np.int32)
            self._program.begin(slots, slots, no_spans, nothing, slots, samplers).finish()
            times.append(self._program.seconds - before)
        return statistics.median(times) * 1e6


def samplers(settings: dict[str, Any], vocabulary: int, rules: TokenRules) -> list[_native.Sampler]:
    """A sampler for each slot, after a thousand prompt tokens."""
    rng = np.random.default_rng(0)
    made = []
    for slot in range(SLOTS):
        made.append(make_sampler(SamplingParams(seed=slot, **settings), rules))
        made[-1].observe_prompt(rng.integers(0, vocabulary, 1000).astype(np.int32))
    return made


def main() -> None:
    logits, rules = real_logits(sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-coder-1.5b")
    vocabulary = logits.shape[1]
    flat = np.random.default_rng(1).normal(0, 1, logits.shape).astype(np.float32)
    steps = [Step(logits), Step(flat)]
    print(f"{SLOTS} slots, {vocabulary:,} tokens, {THREADS} threads; us: real logits, flat ones")
    for name, settings in CASES.items():
        figures = []
        for step in steps:
            copying = step.microseconds([])
            figures.append(step.microseconds(samplers(settings, vocabulary, rules)) - copying)
        print(f"  {name:34} {figures[0]:8.0f} {figures[1]:8.0f}")


if __name__ == "__main__":
    main()
