"""`heddle bench`: compares the engine with the machine's limits, or Heddle's server with a peer.

Without `--against`, the command measures prefill and decode without HTTP, and shows every figure as
a share of the limit by memory and arithmetic. With `--against`, Heddle's server and a peer get the
same load.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.loading import load
from heddle.cli.options import (
    Against,
    AsJson,
    Model,
    PeerKey,
    PeerModel,
    Url,
    numbers,
    with_settings,
)
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.errors import ConfigError

if TYPE_CHECKING:
    from heddle.extensions.bench.report import Loads

_DEPTHS = "0,1024"
_DEPTH_AGAINST = "128"


_Streams = Annotated[str, typer.Option(help="Numbers of streams to measure, such as 1,2,4,8.")]
_Depths = Annotated[
    str | None,
    typer.Option(
        help="Tokens in each stream's context before decode is measured (default "
        f"{_DEPTHS}; {_DEPTH_AGAINST} with --against).",
        show_default=False,
    ),
]
_PromptTokens = Annotated[
    int, typer.Option(min=1, help="Tokens of each prompt when prefill is measured.")
]
_NewTokens = Annotated[
    int, typer.Option(min=2, help="Tokens that each stream generates per round.")
]
_Rounds = Annotated[int, typer.Option(min=1, help="Rounds; a figure is their median.")]
_Profile = Annotated[
    bool,
    typer.Option("--profile", help="Show time per kind of native instruction instead of speed."),
]


@with_settings
def bench(
    model: Model = DEFAULT_MODEL,
    *,
    streams: _Streams = "1,2,4,8",
    depths: _Depths = None,
    prompt_tokens: _PromptTokens = 512,
    new_tokens: _NewTokens = 64,
    rounds: _Rounds = 3,
    against: Against = None,
    peer_model: PeerModel = None,
    peer_key: PeerKey = None,
    url: Url = None,
    profile: _Profile = False,
    as_json: AsJson = False,
    engine: EngineConfig,
) -> None:
    """Measure speed as a share of this machine's limits, or beside another server.

    `heddle bench prefix` measures how much time the prefix cache saves. `heddle bench load` puts a
    load on any server, and judges it.
    """
    counts = numbers("--streams", streams, least=1)
    contexts = numbers("--depths", depths or (_DEPTH_AGAINST if against else _DEPTHS), least=0)
    if url is None and max(counts) > engine.slots:
        raise ConfigError(
            f"--streams: {max(counts)} streams need as many slots; there are {engine.slots}; raise"
            " --slots"
        )
    if profile and against is not None:
        raise ConfigError("--profile measures in this process only; leave out --against")
    if against is not None:
        lengths = [max(1, context) for context in contexts]
        scenarios = [(n, length, new_tokens) for length in lengths for n in counts]
        scenarios += [(n, prompt_tokens, 1) for n in counts]
        _compare(model, engine, against, peer_model, peer_key, url, scenarios, rounds, as_json)
    elif peer_model or url:
        raise ConfigError("--peer-model and --url need --against")
    else:
        from heddle.extensions.bench.report import Loads

        loads = Loads(counts, contexts, prompt_tokens, new_tokens, rounds)
        (_profile if profile else _measure)(model, engine, loads, as_json)


def _measure(model: str, config: EngineConfig, loads: "Loads", as_json: bool) -> None:
    from heddle.extensions.bench.commands.tables import print_report, progress_notes
    from heddle.extensions.bench.report import measure

    with load(model, config) as engine, progress_notes() as note:
        report = measure(engine, loads, note)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        print_report(report)


def _profile(model: str, config: EngineConfig, loads: "Loads", as_json: bool) -> None:
    from heddle.extensions.bench.commands.tables import print_profiles, progress_notes
    from heddle.extensions.bench.profile import profile

    with load(model, config) as engine, progress_notes() as note:
        profiles = profile(engine, loads, note)
    if as_json:
        print(json.dumps([each.as_dict() for each in profiles], indent=2, allow_nan=False))
    else:
        print_profiles(profiles)


def _compare(
    model: str,
    config: EngineConfig,
    against: str,
    peer_model: str | None,
    peer_key: str | None,
    url: str | None,
    loads: list[tuple[int, int, int]],
    rounds: int,
    as_json: bool,
) -> None:
    from heddle.extensions.bench.commands.tables import other_work_line, progress_notes
    from heddle.extensions.bench.machine import describe
    from heddle.extensions.bench.remote import connect
    from heddle.extensions.bench.servers import heddle_server
    from heddle.extensions.bench.side_by_side import (
        Scenario,
        alternate,
        most_other_work,
        summarise,
        table,
    )

    scenarios = [Scenario(*each) for each in loads]
    with ExitStack() as stack:
        # First: without a peer, do not load a model.
        peer = connect("peer", against, peer_model, key=peer_key)
        if url is None:
            heddle = stack.enter_context(heddle_server(model, config))
        else:
            heddle = connect("heddle", url, key=peer_key)
        note = stack.enter_context(progress_notes())
        scenarios, results = alternate([heddle, peer], scenarios, rounds, note=note)
    summary = summarise(results)
    report = {
        "model": heddle.model,
        "peer": {"url": peer.url, "model": peer.model},
        "machine": describe("heddle"),
        "rounds": rounds,
        "scenarios": {scenario.name: asdict(scenario) for scenario in scenarios},
        "summary": summary,
        "results": results,
    }
    if as_json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        print(table(summary, scenarios))
        print(other_work_line(most_other_work(results)))
