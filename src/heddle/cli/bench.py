"""`heddle bench`: throughput and latency of the engine in this process, without HTTP."""

import json
import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.loading import load
from heddle.cli.measure import FORMULAS, Figures, Timeline, figures
from heddle.cli.options import Model, with_settings
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.errors import ConfigError
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from heddle.engine import Engine

Count = Annotated[int, typer.Option(min=1)]


@with_settings
def bench(
    model: Model = DEFAULT_MODEL,
    *,
    streams: Annotated[str, typer.Option(help="Requests at once, one row each.")] = "1,2,4,8",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of each prompt.")] = 128,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens each request makes.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per row, pooled.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
    engine: EngineConfig,
) -> None:
    """Measure throughput and latency.

    Prompts are random tokens, new ones in every round, so that no prefix is found in the cache.
    """
    counts = _counts(streams, most=engine.slots + engine.queue)
    with load(model, engine) as loaded:
        prompts = PromptSource(loaded, prompt_tokens)
        run_round(loaded, prompts, 1, 2)  # the first pass touches every weight for the first time
        rows = []
        for count in counts:
            recorded = [run_round(loaded, prompts, count, new_tokens) for _ in range(rounds)]
            rows.append(figures(recorded, prompt_tokens))
        name = loaded.model.info.id
    if as_json:
        print(json.dumps(_report(name, prompt_tokens, new_tokens, rounds, rows), indent=2))
    else:
        _print_table(name, prompt_tokens, new_tokens, rounds, rows)


def _counts(streams: str, most: int) -> list[int]:
    counts = [int(text) if text.strip().isdecimal() else 0 for text in streams.split(",")]
    if not all(counts):
        raise ConfigError(f"--streams: {streams!r} is not a list of whole numbers such as 1,2,4")
    if max(counts) > most:
        raise ConfigError(
            f"--streams: {max(counts)} is more than slots and queue hold, {most}; raise --queue"
        )
    return counts


class PromptSource:
    """Random prompts that never repeat, the same in every run."""

    def __init__(self, engine: "Engine", length: int) -> None:
        tokenizer = engine.model.tokenizer
        size = tokenizer.vocabulary_size
        self._tokens = [token for token in range(size) if not tokenizer.is_special(token)]
        self._random = random.Random(0)
        self._length = length

    def next(self) -> list[int]:
        return self._random.choices(self._tokens, k=self._length)


def run_round(
    engine: "Engine", prompts: PromptSource, streams: int, new_tokens: int
) -> list[Timeline]:
    """Send `streams` requests at once and wait for all.

    Raises:
        HeddleError: a request was refused or failed.
    """
    timelines = [Timeline() for _ in range(streams)]
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    requests = [(prompts.next(), params, timeline.record) for timeline in timelines]
    for timeline in timelines:
        timeline.start()
    engine.submit_many(requests)
    for timeline in timelines:
        timeline.wait()
    return timelines


def _report(
    model: str, prompt_tokens: int, new_tokens: int, rounds: int, rows: list[Figures]
) -> dict[str, Any]:
    return {
        "model": model,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "rounds": rounds,
        "formulas": FORMULAS,
        "results": [row.as_dict() for row in rows],
    }


def _print_table(
    model: str, prompt_tokens: int, new_tokens: int, rounds: int, rows: list[Figures]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{model}: {prompt_tokens} prompt tokens, {new_tokens} new tokens, {rounds} rounds"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 0, 0, 1))
    headings = (
        "streams",
        "prompt\ntok/s",
        "decode\ntok/s",
        "TTFT\np50 ms",
        "TTFT\nmax ms",
        "TPOT\np50 ms",
        "ITL\np50 ms",
        "ITL\np99 ms",
        "ITL\nmax ms",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        latencies = (
            row.ttft.p50,
            row.ttft.max,
            row.tpot.p50,
            row.itl.p50,
            row.itl.p99,
            row.itl.max,
        )
        table.add_row(
            str(row.streams),
            f"{row.prompt_rate:.0f}",
            f"{row.decode_rate:.0f}",
            *(f"{seconds * 1000:.1f}" for seconds in latencies),
        )
    console = Console()
    console.print(table)
    for name, formula in FORMULAS.items():
        console.print(f"[dim]{name} = {formula}[/dim]", highlight=False, soft_wrap=True)
