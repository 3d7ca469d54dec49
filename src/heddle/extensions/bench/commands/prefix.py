"""`heddle bench prefix`: measures the time that the prefix cache saves.

Without `--against`, the command compares two Heddle servers, one with the prefix cache and one
without. With `--against`, it compares Heddle with its cache and the peer with its own settings.
"""

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import Against, AsJson, Model, PeerKey, PeerModel, Url, with_settings
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.errors import ConfigError
from heddle.sizes import counted

if TYPE_CHECKING:
    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.prefix import Figures, PrefixLoad, PrefixReport


@with_settings
def bench_prefix(
    model: Model = DEFAULT_MODEL,
    *,
    requests: Annotated[int, typer.Option(min=1, help="Number of all requests.")] = 200,
    shared: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of the requests that begin with the shared prefix, 0 to 1."
        ),
    ] = 0.8,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the shared prefix.")] = 1500,
    tail_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens after the prefix, different in each request.")
    ] = 64,
    new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that each request generates.")
    ] = 32,
    rounds: Annotated[
        int, typer.Option(min=1, help="Parts of the load; the servers take turns after each part.")
    ] = 10,
    against: Against = None,
    peer_model: PeerModel = None,
    peer_key: PeerKey = None,
    url: Url = None,
    as_json: AsJson = False,
    engine: EngineConfig = EngineConfig(slots=2),  # noqa: B008 - frozen
) -> None:
    """Measure the time that the prefix cache saves when requests share a prefix.

    All slots are in use.
    """
    from heddle.extensions.bench.prefix import PrefixLoad

    if rounds > requests:
        raise ConfigError(
            f"--rounds: {rounds} is more than the {requests} requests; lower it or raise --requests"
        )
    if against is None and (peer_model or url):
        raise ConfigError("--peer-model and --url need --against")
    load = PrefixLoad(
        engine.slots, requests, rounds, shared, prefix_tokens, tail_tokens, new_tokens
    )
    report = _measure(model, engine, load, against, peer_model, peer_key, url)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        _print(report)


def _measure(
    model: str,
    config: EngineConfig,
    load: "PrefixLoad",
    against: str | None,
    peer_model: str | None,
    peer_key: str | None,
    url: str | None,
) -> "PrefixReport":
    """Start the servers that do not run yet, and run all loads."""
    from heddle.extensions.bench.commands.tables import progress_notes
    from heddle.extensions.bench.machine import describe
    from heddle.extensions.bench.other_work import OtherWork
    from heddle.extensions.bench.prefix import (
        BURST,
        PrefixReport,
        run_burst,
        run_identical,
        run_load,
    )
    from heddle.extensions.bench.remote import connect
    from heddle.extensions.bench.servers import heddle_server

    def start(config: EngineConfig) -> "Server":
        return stack.enter_context(heddle_server(model, config))

    # Files of earlier runs must not count, and two servers cannot share a directory.
    cold = replace(config, prefix_cache_dir="")
    with ExitStack() as stack:
        note = stack.enter_context(progress_notes())
        if against is not None:
            # First: without a peer, do not load a model.
            theirs = connect("peer", against, peer_model, key=peer_key)
            ours = connect("heddle", url, key=peer_key) if url else start(config)
        else:
            ours = replace(start(config), name="cache on")
            theirs = replace(start(replace(cold, prefix_cache=False)), name="cache off")
        pids = [server.pid for server in (ours, theirs) if server.pid is not None]
        others = OtherWork(pids)
        rounds = run_load([ours, theirs], load, note)
        other_work = others.share() if len(pids) == 2 else None
        note("the same prompt several times in a row")
        identical = run_identical(ours, load)
        wide = ours if url else start(replace(cold, slots=max(BURST, config.slots)))
        note("prompts with a new shared prefix, all at once")
        burst = run_burst(wide, load)
    machine = describe("heddle")
    return PrefixReport(ours.model, machine, load, rounds, identical, burst, other_work)


def _print(report: "PrefixReport") -> None:
    from heddle.extensions.bench.commands.tables import other_work_line
    from heddle.extensions.bench.machine import cores_of
    from heddle.extensions.bench.prefix import FORMULAS

    load, identical, burst = report.load, report.identical, report.burst
    print(
        f"{report.model} on {report.machine['cpu']}, {cores_of(report.machine)}\n"
        f"{counted(load.requests, 'request')}, {load.clients} at a time,"
        f" {counted(load.new, 'token')} for each;"
        f" {load.shared:.0%} share a prefix of\n{load.prefix} tokens before {load.tail} different"
        " tokens; the others share nothing\n"
    )
    columns = [_column(figures) for figures in report.figures().values()]
    better = {
        _ROWS[name]: f"{ratio.all:.1f} ({ratio.min:.1f} to {ratio.max:.1f})"
        for name, ratio in report.times_better().items()
    }
    print(f"{'':16}" + "".join(f"{name:>12}" for name in report.rounds) + "  times better")
    for row in columns[0]:
        cells = "".join(f"{column[row]:>12}" for column in columns)
        print(f"{row:16}{cells}  {better.get(row, '')}".rstrip())
    print(
        f"\nthe same prompt {counted(identical.requests, 'time')} in a row:"
        f" hits {_known(identical.hits)}"
        f"\n{burst.requests} at once that share a new prefix: {burst.computed} prompt tokens"
        f" computed; prefix and tails have {load.prefix + burst.requests * load.tail}\n"
        f"{other_work_line(report.other_work)}"
    )
    for name, formula in FORMULAS.items():
        print(f"{name} = {formula}")


_ROWS = {"latency_p50": "latency p50, ms", "ttft_p50": "TTFT p50, ms", "rate": "tok/s"}
"""The row of each ratio."""


def _known(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _column(figures: "Figures") -> dict[str, str]:
    return {
        "latency p50, ms": f"{1e3 * figures.latency.p50:.0f}",
        "latency p99, ms": f"{1e3 * figures.latency.p99:.0f}",
        "TTFT p50, ms": f"{1e3 * figures.ttft.p50:.0f}",
        "TTFT p99, ms": f"{1e3 * figures.ttft.p99:.0f}",
        "tok/s": f"{figures.rate:.1f}",
        "hits": _known(figures.hits),
        "computed": _known(figures.computed),
    }
