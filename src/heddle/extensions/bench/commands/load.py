"""`heddle bench load`: a load on an OpenAI-compatible server, with a verdict."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import (
    AsJson,
    External,
    Force,
    PeerKey,
    Protect,
    ServerModel,
    Target,
    numbers,
    with_settings,
)
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.errors import ConfigError
from heddle.sizes import counted

if TYPE_CHECKING:
    from heddle.extensions.bench.figures import Spread
    from heddle.extensions.bench.load import LoadReport, LoadResult
    from heddle.extensions.bench.process import Memory

_TARGETS = "2:1.7,4:3.0"
_TARGET = re.compile(r"(\d{1,4}):(\d+(?:\.\d+)?)")
_REASON = 300  # characters of an error: a refusal may have a long body


@with_settings
def bench_load(
    target: Target = DEFAULT_MODEL,
    *,
    concurrency: Annotated[int, typer.Option(min=1, help="Most requests at once.")] = 8,
    requests: Annotated[int, typer.Option(min=1, help="Number of all requests.")] = 64,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens that each request generates.")
    ] = 64,
    prompt_words: Annotated[
        int, typer.Option(min=4, help="Length of each prompt, in words of 1 to 5 tokens.")
    ] = 40,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send chats (/v1/chat/completions).")
    ] = False,
    label: Annotated[
        str, typer.Option(metavar="TEXT", help="Name of this run in its report.")
    ] = "",
    baseline_tps: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Tokens per second to compare with. The exit code is 5 if the ratio is below"
            " --min-ratio.",
        ),
    ] = None,
    min_ratio: Annotated[
        float, typer.Option(min=0, help="Least ratio to --baseline-tps, 1 = as fast.")
    ] = 1.0,
    slots: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="With a MODEL: numbers of slots, such as 1,2,4. Each number gets a server.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="With --slots: least tokens per second for numbers of slots, as multiples of those"
            " of one slot. The exit code is 7 below one of them; none = no targets.",
            show_default=_TARGETS,
        ),
    ] = None,
    protect: Protect = "8081",
    external: External = False,
    force: Force = False,
    model: ServerModel = None,
    key: PeerKey = None,
    as_json: AsJson = False,
    engine: EngineConfig,
) -> int:
    """Measure a server under load, and judge it.

    Exit codes: 0 good; 5 slower than the baseline; 6 a request got something of another request; 7
    several slots are slower than their target; 1 a request failed; 2 the load did not run.
    """
    from heddle.extensions.bench.commands.tables import progress_notes
    from heddle.extensions.bench.load import Load, LoadReport, run_load
    from heddle.extensions.bench.machine import describe
    from heddle.extensions.bench.servers import heddle_server
    from heddle.extensions.bench.targets import external_server, is_url

    load = Load(concurrency, requests, max_tokens, prompt_words, chat)
    sweep = [engine.slots] if slots is None else numbers("--slots", slots, least=1)
    if baseline_tps is not None and baseline_tps <= 0:
        raise ConfigError(f"--baseline-tps: {baseline_tps:g} is not above 0")
    if slots is not None and is_url(target):
        raise ConfigError("--slots starts servers; name a model instead of a URL")
    least = _parse_targets(_TARGETS if targets is None else targets)
    if targets is not None and least:
        _check_targets(least, [] if slots is None else sweep, concurrency)
    given = external_server(target, model, key, protect, external=external, force=force)
    results = []
    with progress_notes() as note:
        if given is not None:
            note(f"{counted(requests, 'request')} to {given.url}")
            results.append(run_load(given, load, baseline=baseline_tps))
        for count in sweep if given is None else []:
            note(f"{counted(requests, 'request')} to a server with {counted(count, 'slot')}")
            config = replace(engine, slots=count, queue=max(engine.queue, concurrency))
            with heddle_server(target, config) as server:
                results.append(run_load(server, load, slots=count, baseline=baseline_tps))
    report = LoadReport(label, load, describe("heddle"), results, min_ratio, least)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        _print(report)
    return int(report.verdict)


def _parse_targets(text: str) -> dict[int, float]:
    """The least scalings of a list such as 2:1.7,4:3.0. Raises ConfigError: it is none."""
    if text == "none":
        return {}
    found = {}
    for part in text.split(","):
        target = _TARGET.fullmatch(part.strip())
        if target is None:
            raise ConfigError(f"--targets: {text!r} is not a list such as {_TARGETS}")
        found[int(target[1])] = float(target[2])
    return found


def _check_targets(targets: Iterable[int], sweep: list[int], concurrency: int) -> None:
    """Check that a sweep can show the scalings of all `targets`. Raises ConfigError."""
    for count in (1, *targets):
        if count not in sweep:
            raise ConfigError(f"--targets: --slots has no server with {count}; add it there")
        if count > concurrency:
            raise ConfigError(
                f"--targets: {concurrency} requests at once do not fill {count} slots; raise"
                " --concurrency"
            )


def _print(report: "LoadReport") -> None:
    from heddle.extensions.bench.commands.tables import other_work_line
    from heddle.extensions.bench.load import FORMULAS

    load, first = report.load, report.results[0]
    title = f"{report.label}: " if report.label else ""
    print(
        f"{title}{first.model} at {first.url}\n"
        f"{counted(load.requests, 'request')}, {load.concurrency} at a"
        f" time, at most {counted(load.max_tokens, 'token')} for each\n"
        "times: p50 / p95 / p99; memory: before / peak / after\n"
    )
    columns = [_column(result) for result in report.results]
    for row in columns[0]:
        print(f"{row:14}" + "".join(f"{column[row]:>22}" for column in columns))
    print()
    for result in report.results:
        _print_findings(result)
    print(other_work_line(report.other_work))
    for name, formula in FORMULAS.items():
        print(f"{name} = {formula}")
    for slots, ratio, target in report.scalings:
        print(f"scaling with {slots} slots: {ratio:.2f}, target {target:g}")
    print(f"verdict: {report.verdict.name.lower().replace('_', ' ')}")


def _print_findings(result: "LoadResult") -> None:
    requests = result.answered + sum(result.failures.values())
    for reason, count in result.failures.items():
        print(f"{count} of {counted(requests, 'request')} failed: {reason[:_REASON]}")
    for line in result.isolation.findings():
        print(line)


def _column(result: "LoadResult") -> dict[str, str]:
    return {
        "slots": "unknown" if result.slots is None else str(result.slots),
        "answered": str(result.answered),
        "tok/s": f"{result.rate:.1f}",
        "ratio": "none" if result.ratio is None else f"{result.ratio:.2f}",
        "latency, ms": _milliseconds(result.latency),
        "TTFT, ms": _milliseconds(result.ttft),
        "ITL, ms": _milliseconds(result.itl),
        "memory, MB": _megabytes(result.memory),
        "device, MB": _megabytes(result.device_memory),
    }


def _milliseconds(spread: "Spread | None") -> str:
    if spread is None:
        return "unknown"
    times = (1e3 * spread.p50, 1e3 * spread.p95, 1e3 * spread.p99)
    return " / ".join(f"{each:.0f}" if each >= 100 else f"{each:.1f}" for each in times)


def _megabytes(memory: "Memory | None") -> str:
    if memory is None:
        return "unknown"
    return " / ".join(f"{each / 1e6:.0f}" for each in (memory.before, memory.peak, memory.after))
