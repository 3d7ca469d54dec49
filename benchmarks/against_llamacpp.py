"""Heddle side by side with llama.cpp's server, over HTTP, on one machine.

    pip install '.[bench]' && python benchmarks/against_llamacpp.py

Both servers stay up; in every round each scenario runs on one and then on the other, the order
swapped from round to round, so that a drifting machine treats both alike and neither ever works
while the other is measured. Prompts are random token ids, the same for both, and new for every
request, so that nothing is answered from a prompt cache. What the columns mean is in `streams.py`;
figures are medians over rounds.

The xllamacpp wheel is built for AVX2 whatever the CPU; `--isa avx2` holds Heddle to the same.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xllamacpp

from machine import OtherWork, describe
from servers import heddle, llamacpp
from streams import complete, decode_metrics, prompt_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servers import Server
    from streams import Stream

_TOKEN_IDS = range(1_000, 20_000)  # ordinary tokens in every vocabulary served
_SETTLE_SECONDS = 0.2  # for the threads of the server measured before to go to sleep

Rounds = dict[str, dict[str, list[dict[str, float]]]]  # scenario -> server -> metrics per round


@dataclass(frozen=True, slots=True)
class Scenario:
    """`streams` requests at once, each with `prompt` tokens of prompt and `new` tokens to make."""

    name: str
    streams: int
    prompt: int
    new: int
    metrics: Callable[[Sequence[Stream]], dict[str, float]]
    headline: tuple[str, ...]


def scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    """What is measured: decoding at each number of streams, then prompts alone."""
    generation = ("decode_tok_s", "steady_tok_s", "request_tok_s")
    decode = [
        Scenario(f"generate x{n}", n, 128, 64, decode_metrics, generation)
        for n in arguments.streams
    ]
    prompts = [
        Scenario(f"prompt x{n}", n, 512, 1, prompt_metrics, ("prompt_tok_s",))
        for n in sorted({1, max(arguments.streams)})
    ]
    return decode + prompts


def run(
    servers: Sequence[Server], measured: Sequence[Scenario], rounds: int, seconds: float
) -> Rounds:
    """Alternate until `rounds` are done or the next would end more than `seconds` from now."""
    results: Rounds = {s.name: {server.name: [] for server in servers} for s in measured}
    start = time.monotonic()
    for server in servers:
        complete(server, _prompts(random.Random("warm-up"), 2, 64), 8)
    for index in range(rounds):
        began = time.monotonic()
        for scenario in measured:
            prompts = _prompts(
                random.Random(f"{scenario.name} {index}"), scenario.streams, scenario.prompt
            )
            for server in servers[:: 1 if index % 2 == 0 else -1]:
                time.sleep(_SETTLE_SECONDS)
                others = OtherWork(server.pid for server in servers)
                streams = complete(server, prompts, scenario.new)
                metrics = scenario.metrics(streams) | {"other_work": others.share()}
                results[scenario.name][server.name].append(metrics)
        now = time.monotonic()
        print(f"round {index + 1} took {now - began:.0f} s", file=sys.stderr)
        if now - start + (now - began) > seconds:
            break
    return results


def _prompts(generator: random.Random, count: int, length: int) -> list[list[int]]:
    return [generator.choices(_TOKEN_IDS, k=length) for _ in range(count)]


def summarise(results: Rounds) -> dict[str, Any]:
    """Medians over rounds, and the ratio of the first server's to the second's."""
    summary: dict[str, Any] = {}
    for scenario, by_server in results.items():
        medians = {
            server: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            for server, rounds in by_server.items()
        }
        summary[scenario] = medians
        if len(medians) == 2:
            ours, theirs = medians.values()
            ratio = {key: ours[key] / theirs[key] for key in ours if key != "other_work"}
            summary[scenario] = medians | {"ratio": ratio}
    return summary


def most_other_work(results: Rounds) -> float:
    """The largest share of the machine that other processes took during a measurement."""
    return max(
        metrics["other_work"]
        for by_server in results.values()
        for rounds in by_server.values()
        for metrics in rounds
    )


def table(summary: dict[str, Any], measured: Sequence[Scenario]) -> str:
    """The headline figures, in tokens per second, as aligned text."""
    columns = list(summary[measured[0].name])
    lines = [f"{'':14}{'tokens/s':10}" + "".join(f"{column:>12}" for column in columns)]
    for scenario in measured:
        for key in scenario.headline:
            values = ((column, summary[scenario.name][column][key]) for column in columns)
            cells = (f"{value:12.2f}" if c == "ratio" else f"{value:12.1f}" for c, value in values)
            lines.append(f"{scenario.name:14}{key.removesuffix('_tok_s'):10}" + "".join(cells))
    return "\n".join(lines)


def _model_path(model: str) -> Path:
    """The file behind a .gguf path, an alias or a package, fetched if need be."""
    if model.endswith(".gguf"):
        return Path(model)
    command = [sys.executable, "-m", "heddle", "inspect", model, "--json"]
    return Path(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["path"]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="as for heddle serve")
    parser.add_argument(
        "--streams",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1, 2, 4, 8],
        help="requests at once, as in 1,2,4,8",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=300, help="start no round that would end later"
    )
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each server")
    parser.add_argument("--isa", default="auto", help="instruction level of Heddle's kernels")
    parser.add_argument("--only", choices=["heddle", "llama.cpp"], help="measure one of the two")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, not a table")
    parser.add_argument("--out", type=Path, help="write the result as JSON to this file as well")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    path, slots = _model_path(arguments.model), max(arguments.streams)
    measured = scenarios(arguments)
    with ExitStack() as stack:
        servers = []
        if arguments.only != "llama.cpp":
            options = ["--isa", arguments.isa]
            servers.append(
                stack.enter_context(heddle(str(path), arguments.threads, slots, options))
            )
        if arguments.only != "heddle":
            servers.append(stack.enter_context(llamacpp(path, arguments.threads, slots)))
        results = run(servers, measured, arguments.rounds, arguments.seconds)
    summary = summarise(results)
    report = {
        "model": path.name,
        "threads": arguments.threads,
        "isa": arguments.isa,
        "rounds": len(results[measured[0].name][servers[0].name]),
        "machine": describe(("heddle", "xllamacpp")),
        "llama_cpp_build": xllamacpp.get_system_info().strip(),
        "summary": summary,
        "results": results,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2) if arguments.json else table(summary, measured))
    print(f"other processes took up to {most_other_work(results):.0%}", file=sys.stderr)


if __name__ == "__main__":
    main()
