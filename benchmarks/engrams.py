"""Measures what engram tables cost: eight streams with a table, and eight without.

    python benchmarks/engrams.py TEXTS... [--model MODEL] [--rounds N]

The script builds tables of the texts (files and folders): of one to three tokens, and of three.
Eight streams write about other things. For each table it prints:

- the share of look-ups that found nothing, and the share of these that the filter ended;
- what a bias adds to a greedy pick, in microseconds on one thread, where the table predicts as many
  tokens as it can, and where it predicts none;
- the cost of a step of eight slots, as a share of a step without a table: computed from these times
  as if one thread did all of the work, and measured in rounds that alternate (median, least, most).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.engine import Engine
from heddle.executors.cpu.samplers import make_sampler
from heddle.extensions.bench.local import run_decode
from heddle.extensions.engrams.build import Form, build
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.grouping import Keep
from heddle.extensions.engrams.library import tables_of
from heddle.extensions.engrams.reader import Engram as Reader
from heddle.extensions.engrams.texts import find_texts
from heddle.sampling_params import SamplingParams
from heddle.token_rules import TokenRules
from heddle.weights.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS, THREADS, TOKENS = 8, 2, 48
PROMPTS = [
    f"Write about {subject}, at length and in small letters."
    for subject in ("wool", "bread", "a river", "iron", "the sea", "a market", "winter", "horses")
]
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, seed=1, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, seed=1)
KEEP = Keep(top=64)
FORMS = {"n-grams of 1 to 3 tokens": Form(3, 1, KEEP), "n-grams of 3 tokens": Form(3, 3, KEEP)}


@dataclass(frozen=True, slots=True)
class Bias:
    """The extra time of a pick with a table, in microseconds: where it predicts, and elsewhere."""

    found: float
    missed: float


def bias_times(engine: Engine, name: str, known: Sequence[int]) -> Bias:
    """`known` is the n-gram of the table with most followers."""
    bias = tables_of(engine).bias(engine.model.sampling_params(engram=name))
    logits = np.random.default_rng(0).normal(0, 3, engine.model.info.vocabulary).astype(np.float32)
    vocabulary = engine.model.info.vocabulary
    strangers = [vocabulary - 7, vocabulary - 9, vocabulary - 11]

    def pick_us(rules: TokenRules, tokens: Sequence[int]) -> float:
        sampler = make_sampler(GREEDY, rules)
        sampler.observe_prompt(np.array(tokens, np.int32))
        before = time.perf_counter()
        sampler.pick("auto", logits)
        return (time.perf_counter() - before) * 1e6

    def extra(tokens: Sequence[int]) -> float:
        pairs = [
            (pick_us(TokenRules(extensions=(bias,)), tokens), pick_us(TokenRules(), tokens))
            for _ in range(1500)
        ]
        # Other work only makes a pick longer, so the shortest tenth shows the pick itself.
        with_table, without = (np.percentile(times, 10) for times in zip(*pairs, strict=True))
        return float(with_table - without)

    return Bias(extra(known), extra(strangers))


def step_ms(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> float:
    run = run_decode(engine, prompts, TOKENS, params)
    steps = run.after.steps - run.before.steps
    return (run.after.step_seconds - run.before.step_seconds) / steps * 1e3


def report(engine: Engine, name: str, known: Sequence[int], rounds: int) -> None:
    prompts = [engine.model.tokenizer.encode(prompt) for prompt in PROMPTS]
    asked = engine.model.sampling_params(engram=name)
    table = tables_of(engine).library.find(name, tables_of(engine))
    pairs = []
    before = table.counts
    for seed in range(rounds + 1):  # the first warms up
        params = replace(PARAMS, seed=seed)
        plain = step_ms(engine, prompts, params)
        pairs.append(
            (plain, step_ms(engine, prompts, replace(params, extensions=asked.extensions)))
        )
    looked_up, filtered, found = (b - a for a, b in zip(before, table.counts, strict=True))
    missed = looked_up - found
    times = bias_times(engine, name, known)
    least = min(plain for plain, _ in pairs)
    ratios = [100 * (other / plain - 1) for plain, other in pairs[1:]]
    ended = filtered / missed
    print(f"  {table.entries:,} n-grams; {missed / looked_up:.1%} of {looked_up:,} look-ups miss")
    print(f"  the filter ends {ended:.1%} of the misses")
    print(f"  bias: {times.found:.1f} us with predictions, {times.missed:.1f} us without")
    worst = SLOTS * max(times.found, times.missed) / (least * 1e3)
    print(f"  step of {SLOTS} slots: {least:.2f} ms or more; with a bias in all: {worst:.2%} of it")
    print(
        f"  measured: {statistics.median(ratios):+.1f}% ({min(ratios):+.1f} to {max(ratios):+.1f})",
        flush=True,
    )


def widest(path: Path) -> tuple[int, ...]:
    """The n-gram with most followers."""
    with Reader.open(path) as table:
        best = max(table.entries(), key=lambda entry: len(entry.followers))
    assert best.ngram is not None, "the tables have version 2"
    return best.ngram


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", nargs="+", help="files and folders to build the tables of")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    texts = find_texts(options.texts, print)
    config = EngineConfig(slots=SLOTS, threads=THREADS)
    with tempfile.TemporaryDirectory() as folder, Engine.load(options.model, config) as engine:
        tokenizer = engine.model.tokenizer
        vocabulary = Vocabulary.of(tokenizer.vocabulary_entries())
        print(f"{options.model}, {SLOTS} slots, {THREADS} threads, {len(texts)} texts")
        for place, (name, form) in enumerate(FORMS.items()):
            path = Path(folder, f"{place}.engr")
            build(path, texts, tokenizer, vocabulary, form, Silent())
            tables_of(engine).library.load(f"table-{place}", path)
            print(name)
            report(engine, f"table-{place}", widest(path), options.rounds)


if __name__ == "__main__":
    main()
