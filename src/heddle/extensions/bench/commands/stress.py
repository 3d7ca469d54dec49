"""`heddle bench stress`: full slots, clients that leave, malformed requests."""

import json
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
    with_settings,
)
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.errors import ConfigError
from heddle.sizes import counted

if TYPE_CHECKING:
    from heddle.extensions.bench.stress_report import StressReport

_CONTEXT = 1024
_KV_CACHE = 96 << 20
"""Small, so that the first half of the requests fills it: untouched pages take no memory, and pages
touched in the second half would look like a leak."""
_SHOWN = 20


@with_settings
def bench_stress(
    target: Target = DEFAULT_MODEL,
    *,
    requests: Annotated[int, typer.Option(min=2, help="Number of all requests.")] = 1000,
    cancelled: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests whose client leaves.")
    ] = 0.3,
    malformed: Annotated[
        float, typer.Option(min=0, max=1, help="Share of malformed requests.")
    ] = 0.1,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens that a request generates.")
    ] = 48,
    prompt_words: Annotated[
        int, typer.Option(min=4, help="Length of the longest prompts, in words.")
    ] = 160,
    growth: Annotated[
        float,
        typer.Option(min=0, help="Most growth of memory in the second half, as a share."),
    ] = 0.02,
    protect: Protect = "8081",
    external: External = False,
    force: Force = False,
    model: ServerModel = None,
    key: PeerKey = None,
    as_json: AsJson = False,
    engine: EngineConfig = EngineConfig(  # noqa: B008 - frozen
        slots=4, queue=8, context=_CONTEXT, kv_cache=_KV_CACHE
    ),
) -> int:
    """Stress a server: full slots, a full queue, clients that leave, malformed requests.

    As many clients send requests as there are slots and places in the queue. Exit codes: 0 nothing
    was found; 6 a request got something of another request, or another answer than alone; 1 other
    faults; 2 the load did not run.
    """
    from heddle.extensions.bench.commands.tables import progress_notes
    from heddle.extensions.bench.machine import describe
    from heddle.extensions.bench.servers import heddle_server
    from heddle.extensions.bench.stress import Stress, compare_with_solo, run_stress
    from heddle.extensions.bench.stress_report import StressReport
    from heddle.extensions.bench.targets import external_server

    if cancelled + malformed > 1:
        raise ConfigError("--cancelled and --malformed are more than all requests together")
    given = external_server(target, model, key, protect, external=external, force=force)
    stress = Stress(
        engine.slots, engine.queue, requests, cancelled, malformed, max_tokens, prompt_words, growth
    )
    with progress_notes() as note:
        if given is not None:
            server = given
            run = run_stress(server, stress, note)
            compare_with_solo(server, stress, run, note)
        else:
            with heddle_server(target, engine) as server:
                run = run_stress(server, stress, note)
            # Nothing that the first server computed can be found again on another.
            alone = replace(engine, slots=1, prefix_cache=False, prefix_cache_dir="")
            with heddle_server(target, alone) as other:
                compare_with_solo(other, stress, run, note)
    report = StressReport(server.model, server.url, describe("heddle"), stress, run)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        _print(report)
    return report.exit_code


def _print(report: "StressReport") -> None:
    stress, run = report.stress, report.run
    print(
        f"{report.model} at {report.url}\n"
        f"{counted(stress.requests, 'request')} in {run.seconds:.1f} s,"
        f" {stress.running} running and {stress.waiting} waiting\n"
    )
    refused = sum(sum(counts.values()) for counts in run.statuses.values())
    for name, number in {
        "answered": len(run.texts) - run.late,
        "cancelled": len(run.parts),
        "answered before they were cancelled": run.late,
        "malformed": refused,
        "refused because the server was full, sent again": run.refused,
        "answers compared with those of the request alone": len(run.texts),
    }.items():
        print(f"{number:6} {name}")
    print(f"\n{'held while idle':24}{'before':>12}{'first half':>12}{'second half':>12}")
    columns = [vitals.as_texts() for vitals in run.vitals]
    for name in columns[0]:
        print(f"{name:24}" + "".join(f"{column[name]:>12}" for column in columns))
    if report.growth is not None:
        print(f"memory grew by {report.growth:.2%} in the second half")
    for line in report.isolation.findings():
        print(line)
    faults = report.faults()
    for line in faults[:_SHOWN]:
        print(f"fault: {line[:300]}")
    print(f"{len(faults)} faults" if faults else "no faults")
