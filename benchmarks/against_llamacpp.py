"""Heddle side by side with llama.cpp's server, over HTTP, on one machine, from the same file.

    pip install '.[bench]' && python benchmarks/against_llamacpp.py [MODEL]

How the rounds go is told in `heddle.bench.side_by_side`, what the figures mean in
`heddle.bench.figures`. The result goes to benchmarks/results/, with the machine's description and
what other processes took of it.

The xllamacpp wheel is built for AVX2 whatever the CPU; `--isa avx2` holds Heddle to the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import xllamacpp

from heddle.bench.machine import describe
from heddle.bench.servers import heddle_server
from heddle.bench.side_by_side import Scenario, alternate, most_other_work, summarise, table
from heddle.config import DEFAULT_MODEL, EngineConfig, cache_home
from heddle.errors import HeddleError
from heddle.weights.catalog import ALIASES
from heddle.weights.sources import resolve
from llamacpp_server import llamacpp

if TYPE_CHECKING:
    from heddle.bench.remote import Server

RESULTS = Path(__file__).with_name("results")


def scenarios(streams: list[int]) -> list[Scenario]:
    """Decoding after short prompts at each number of streams, then long prompts alone."""
    decode = [Scenario(n, prompt=128, new=64) for n in streams]
    return decode + [Scenario(n, prompt=512, new=1) for n in sorted({1, max(streams)})]


def _servers(stack: ExitStack, path: Path, arguments: argparse.Namespace) -> list[Server]:
    slots, servers = max(arguments.streams), []
    if arguments.only != "llama.cpp":
        config = EngineConfig(
            threads=arguments.threads, slots=slots, isa=arguments.isa, context=1024
        )
        servers.append(stack.enter_context(heddle_server(str(path), config)))
    if arguments.only != "heddle":
        servers.append(stack.enter_context(llamacpp(path, arguments.threads, slots)))
    return servers


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="as for heddle serve")
    parser.add_argument(
        "--streams",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1, 2, 4, 8],
        help="requests at once, as in 1,2,4,8",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no round that would end later"
    )
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each server")
    parser.add_argument("--isa", default="auto", help="instruction level of Heddle's kernels")
    parser.add_argument("--only", choices=["heddle", "llama.cpp"], help="measure one of the two")
    parser.add_argument("--out", type=Path, help="where the result goes instead")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    path = resolve(arguments.model, cache_home())
    measured = scenarios(arguments.streams)
    try:
        with ExitStack() as stack:
            servers = _servers(stack, path, arguments)
            measured, results = alternate(
                servers,
                measured,
                arguments.rounds,
                seconds=arguments.seconds,
                note=lambda text: print(text, file=sys.stderr),
            )
    except HeddleError as error:
        sys.exit(error.message)
    summary, other_work = summarise(results), most_other_work(results)
    report = {
        "model": path.name,
        "threads": arguments.threads,
        "isa": arguments.isa,
        "rounds": len(results[measured[0].name][servers[0].name]),
        "machine": describe("heddle", "xllamacpp"),
        "llama_cpp_build": xllamacpp.get_system_info().strip(),
        "most_other_work": other_work,
        "scenarios": {scenario.name: asdict(scenario) for scenario in measured},
        "summary": summary,
        "results": results,
    }
    name = arguments.model if arguments.model in ALIASES else path.stem
    level = "" if arguments.isa == "auto" else f"-{arguments.isa}"
    out = arguments.out or RESULTS / f"{name}{level}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(table(summary, measured))
    print(f"other processes took up to {other_work:.0%} of the machine; result in {out}")


if __name__ == "__main__":
    main()
