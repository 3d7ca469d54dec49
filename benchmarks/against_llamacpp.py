"""Compares Heddle with llama.cpp's server, over HTTP, on one machine, with the same model file.

    pip install '.[bench]' && python benchmarks/against_llamacpp.py [MODEL]

`heddle.extensions.bench.side_by_side` explains the rounds, `heddle.extensions.bench.figures` the
figures. The script writes the result to benchmarks/results/, with the machine's description and the
share of the machine that other processes took.

The xllamacpp wheel uses AVX2 on every CPU. `--isa avx2` gives Heddle the same instruction level.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from comparison import heddle, model_path, note, parser, save
from heddle.errors import HeddleError
from heddle.extensions.bench.commands.tables import other_work_line
from heddle.extensions.bench.side_by_side import (
    Scenario,
    alternate,
    most_other_work,
    summarise,
    table,
)
from llamacpp_server import llamacpp

if TYPE_CHECKING:
    import argparse

    from heddle.extensions.bench.exchange import Server

CONTEXT = 1024
"""Tokens per slot."""

ADAPTER = "measured"
"""The name of the adapter of `--lora`."""


def scenarios(streams: list[int], prompt: int, *, prefill: bool) -> list[Scenario]:
    """Decode after short prompts for each number of streams, then prefill of long prompts alone."""
    decode = [Scenario(n, prompt=prompt, new=64) for n in streams]
    if not prefill:
        return decode
    return decode + [Scenario(n, prompt=512, new=1) for n in sorted({1, max(streams)})]


def _servers(stack: ExitStack, arguments: argparse.Namespace) -> list[Server]:
    slots, servers = max(arguments.streams), []
    if arguments.only != "llama.cpp":
        own = stack.enter_context(heddle(arguments, slots, CONTEXT))
        named = {"lora": ADAPTER} if arguments.lora else {}
        servers.append(replace(own, extras=own.extras | named))
    if arguments.only != "heddle":
        options = ["--lora", str(arguments.lora)] if arguments.lora else []
        peer = llamacpp(model_path(arguments), arguments.threads, slots, CONTEXT, options)
        servers.append(stack.enter_context(peer))
    return servers


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument(
        "--streams",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1, 2, 4, 8],
        help="numbers of streams to measure, such as 1,2,4,8",
    )
    options.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="start no round that would end after this time, in seconds",
    )
    options.add_argument(
        "--prompt", type=int, default=128, help="tokens of the prompts before decoding"
    )
    options.add_argument("--no-prefill", dest="prefill", action="store_false", help="only decode")
    options.add_argument("--lora", type=Path, help="an adapter in a GGUF file, for all requests")
    options.add_argument("--only", choices=["heddle", "llama.cpp"], help="measure only this server")
    return options.parse_args()


def main() -> None:
    arguments = _arguments()
    measured = scenarios(arguments.streams, arguments.prompt, prefill=arguments.prefill)
    try:
        with ExitStack() as stack:
            servers = _servers(stack, arguments)
            measured, results = alternate(
                servers, measured, arguments.rounds, seconds=arguments.seconds, note=note
            )
    except HeddleError as error:
        sys.exit(error.message)
    summary, other_work = summarise(results), most_other_work(results)
    report = {
        "rounds": len(results[measured[0].name][servers[0].name]),
        "most_other_work": other_work,
        "scenarios": {scenario.name: asdict(scenario) for scenario in measured},
        "summary": summary,
        "results": results,
    }
    out = save(report, arguments)
    print(table(summary, measured))
    print(f"{other_work_line(other_work)}; result in {out}")


if __name__ == "__main__":
    main()
