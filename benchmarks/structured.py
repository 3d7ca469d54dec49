"""Measures the cost of structured output: steps with and without a grammar.

    python benchmarks/structured.py [MODEL] [--streams N] [--rounds N] [--only TEXT]

Streams decode with a grammar, then without a grammar, alternately, in this process. A round's
figure is the mean time of its steps, with overhead: expensive masks are rare, and a median would
not show them. The script prints medians over the rounds in milliseconds, and the median, least and
largest ratio of the two. Then it prints the time of one thread for the masks of all streams. With
two threads, a step gets longer by at least half of this time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.extensions.bench.local import run_decode
from heddle.grammars import Grammar
from heddle.sampling_params import SamplingParams
from heddle.text.constrained.matching import MatcherState

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS, TOKENS = 2, 48
FREE = SamplingParams(temperature=0.8, top_p=0.95, seed=1, ignore_eos=True)
PROMPTS = [
    f"Write about {subject}, at length and in small letters."
    for subject in ("wool", "bread", "a river", "iron", "the sea", "a market", "winter", "horses")
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "trade": {"enum": ["weaver", "smith", "miller"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
        "story": {"type": "string", "maxLength": 500},
    },
    "required": ["name", "age", "trade", "tags", "story"],
    "additionalProperties": False,
}
EXPRESSION = """
start: sum
sum: product (("+" | "-") product){99}
product: factor ("*" factor)*
factor: /[0-9]+/ | /[a-z_][a-z_0-9]*/ | "(" sum ")"
"""


def array(items: dict[str, object]) -> Grammar:
    """A grammar that no stream completes."""
    return Grammar.json_schema({"type": "array", "items": items, "minItems": 500})


GRAMMARS = {
    "JSON, a schema": array(PERSON),
    "JSON, any objects": array({"type": "object"}),
    "JSON, short strings": array({"type": "string", "maxLength": 20}),
    "JSON, counted strings and lists": array(
        {
            "type": "array",
            "items": {"type": "string", "minLength": 3, "maxLength": 12},
            "minItems": 2,
            "maxItems": 5,
        }
    ),
    "Lark, expressions": Grammar.lark(EXPRESSION),
    "regex (.|\\n){900,}": Grammar.of("regex", r"(.|\n){900,}"),
    "regex [a-z ]{900,2000}": Grammar.of("regex", "[a-z ]{900,2000}"),
    "regex [^0-9]{900,2000}": Grammar.of("regex", "[^0-9]{900,2000}"),
    "regex ([a-z]{2,9} ){900,}": Grammar.of("regex", "([a-z]{2,9} ){900,}"),
    "regex ([a-z]{20,60} ){900,}": Grammar.of("regex", "([a-z]{20,60} ){900,}"),
    "regex (\\w+[ .,]+){900,}": Grammar.of("regex", r"(\w+[ .,]+){900,}"),
}


class MaskClock:
    """Counts the time spent on masks, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        original = MatcherState.next_mask

        def timed(state: MatcherState, tokens: Sequence[int]) -> bytes:
            began = time.perf_counter()
            try:
                return original(state, tokens)
            finally:
                self.seconds += time.perf_counter() - began

        MatcherState.next_mask = timed  # type: ignore[method-assign, assignment]


def step_ms(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> float:
    run = run_decode(engine, prompts, TOKENS, params)
    steps = run.after.steps - run.before.steps
    return (run.after.step_seconds - run.before.step_seconds) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="measure only grammars with this text in their name"
    )
    options = parser.parse_args()
    clock = MaskClock()
    with Engine.load(options.model, EngineConfig(slots=options.streams, threads=THREADS)) as engine:
        tokenizer = engine.model.tokenizer
        prompts = [tokenizer.encode(prompt) for prompt in PROMPTS[: options.streams]]
        vocabulary = f"{tokenizer.vocabulary_size:,} tokens"
        print(f"{options.model}, {vocabulary}, {options.streams} streams, {THREADS} threads")
        print(f"{'':32}{'free':>8}{'bound':>8}{'ratio':>8}{'least':>8}{'most':>8}{'masks':>8}")
        chosen = {name: GRAMMARS[name] for name in GRAMMARS if options.only in name}
        for name, grammar in chosen.items():
            pairs, masks = [], []
            for round in range(options.rounds + 1):  # the first warms up
                params = replace(FREE, seed=round)
                free = step_ms(engine, prompts, params)
                before = clock.seconds
                bound = step_ms(engine, prompts, replace(params, grammar=grammar))
                masks.append((clock.seconds - before) / TOKENS * 1e3)
                pairs.append((free, bound))
            ratios = [bound / free for free, bound in pairs[1:]]
            free, bound = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            print(
                f"{name:32}{free:8.2f}{bound:8.2f}{statistics.median(ratios):8.3f}"
                f"{min(ratios):8.3f}{max(ratios):8.3f}{statistics.median(masks[1:]):8.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
