"""Measures how a long prompt delays running streams, on Heddle and llama.cpp's server, over HTTP.

    python benchmarks/gaps.py [MODEL]

Every round begins with a long prompt alone. It gives the time to first token on an idle server.
Then four streams run. When each stream has produced 100 pieces of text, another prompt of 1,000
words arrives: the newcomer. The script compares the streams' gaps during the newcomer's prefill
with their median before it. It compares the newcomer's time to first token with the time on the
idle server. No prompt is sent twice. docs/gaps.svg shows the round whose longest gap is the median.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from comparison import both, encoder, note, parser, save, text
from gap_plot import Panel, svg
from heddle.errors import HeddleError
from heddle.extensions.bench.figures import Spread, ttft
from heddle.extensions.bench.other_work import OtherWork
from heddle.extensions.bench.remote import complete, complete_beside
from heddle.extensions.bench.side_by_side import turns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.figures import Stream

    Encode = Callable[[str], list[int]]

STREAMS, STREAM_WORDS, STREAM_TOKENS = 4, 50, 500
NEWCOMER_WORDS, CALM_PIECES = 1000, 100
CONTEXT = 2048
PLOT = Path(__file__).parent.parent / "docs" / "gaps.svg"


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one server in one round. Times are in seconds.

    Attributes:
        calm: gaps of the streams while only the streams run.
        busy: gaps of the streams during the newcomer's prefill, from sending to first token.
        ttft: time to first token of the newcomer.
        idle_ttft: time to first token of a prompt of the same length on an idle server.
        other_work: share of the machine that other work took.
    """

    calm: Spread
    busy: Spread
    ttft: float
    idle_ttft: float
    other_work: float | None

    def ratios(self) -> dict[str, float]:
        """The newcomer's effect on the gaps, and the streams' effect on the newcomer."""
        return {
            "p99_gap": self.busy.p99 / self.calm.p50,
            "longest_gap": self.busy.max / self.calm.p50,
            "ttft": self.ttft / self.idle_ttft,
        }


def measure(server: Server, encode: Encode, seed: str) -> tuple[Round, Panel]:
    others = OtherWork([server.pid] if server.pid is not None else [])
    alone = complete(server, [encode(text(NEWCOMER_WORDS, f"{seed} alone"))], 1)
    streams, newcomer = complete_beside(
        server,
        [encode(text(STREAM_WORDS, f"{seed} {index}")) for index in range(STREAMS)],
        STREAM_TOKENS,
        encode(text(NEWCOMER_WORDS, f"{seed} newcomer")),
        CALM_PIECES,
    )
    sent, first = newcomer.sent, newcomer.arrivals[0]
    if min(stream.arrivals[-1] for stream in streams) < first:
        sys.exit(f"{server.name}: streams ended before the newcomer began; raise STREAM_TOKENS")
    begun = max(stream.arrivals[0] for stream in streams)
    gaps = [pair for stream in streams for pair in pairwise(stream.arrivals)]
    result = Round(
        calm=Spread.of([end - start for start, end in gaps if begun <= start and end <= sent]),
        busy=Spread.of([end - start for start, end in gaps if end > sent and start < first]),
        ttft=first - sent,
        idle_ttft=ttft(alone).p50,
        other_work=others.share(),
    )
    return result, _panel(server.name, streams, newcomer, result)


def _panel(name: str, streams: list[Stream], newcomer: Stream, result: Round) -> Panel:
    gaps = [
        (end - newcomer.sent, end - start)
        for stream in streams
        for start, end in pairwise(stream.arrivals)
    ]
    title = (
        f"{name}: gaps of {STREAMS} streams, median {1e3 * result.calm.p50:.1f} ms, longest"
        f" {1e3 * result.busy.max:.0f} ms while a prompt of {newcomer.prompt_tokens} tokens is"
        f" computed"
    )
    return Panel(title, gaps, result.ttft)


def run(arguments: argparse.Namespace) -> dict[str, list[tuple[Round, Panel]]]:
    encode = encoder(arguments)
    with both(arguments, STREAMS + 1, CONTEXT) as servers:
        for server in servers:
            note(f"trying {server.name}")
            measure(server, encode, "trial")  # Heddle measures the cost of its steps here
        rounds: dict[str, list[tuple[Round, Panel]]] = {server.name: [] for server in servers}
        for index, _, server in turns(servers, ["gaps"], arguments.rounds, note=note):
            rounds[server.name].append(measure(server, encode, f"round {index}"))
    return rounds


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--plot", type=Path, default=PLOT, help="file for the plot")
    arguments = options.parse_args()
    try:
        measured = run(arguments)
    except HeddleError as error:
        sys.exit(error.message)
    rounds = {name: [result for result, _ in each] for name, each in measured.items()}
    print(table(rounds))
    drawn = [median_panel(each) for each in measured.values()]
    arguments.plot.parent.mkdir(parents=True, exist_ok=True)
    arguments.plot.write_text(svg(drawn))
    results = {
        name: [asdict(one) | {"ratios": one.ratios()} for one in each]
        for name, each in rounds.items()
    }
    report = {
        "streams": STREAMS,
        "stream_tokens": STREAM_TOKENS,
        "newcomer_words": NEWCOMER_WORDS,
        "results": results,
    }
    print(f"result in {save(report, arguments, 'gaps-')}, plot in {arguments.plot}")


def table(rounds: dict[str, list[Round]]) -> str:
    """Medians over rounds, a row for each figure and a column for each server."""
    rows: dict[str, Callable[[Round], float]] = {
        "median gap before, ms": lambda one: 1e3 * one.calm.p50,
        "p99 gap before, ms": lambda one: 1e3 * one.calm.p99,
        "p99 gap beside, ms": lambda one: 1e3 * one.busy.p99,
        "longest gap beside, ms": lambda one: 1e3 * one.busy.max,
        "p99 beside / median": lambda one: one.ratios()["p99_gap"],
        "longest / median": lambda one: one.ratios()["longest_gap"],
        "TTFT beside, ms": lambda one: 1e3 * one.ttft,
        "TTFT beside / idle": lambda one: one.ratios()["ttft"],
    }
    lines = [f"{'medians of rounds':24}" + "".join(f"{name:>12}" for name in rounds)]
    for label, figure in rows.items():
        cells = [statistics.median(map(figure, each)) for each in rounds.values()]
        lines.append(f"{label:24}" + "".join(f"{cell:12.1f}" for cell in cells))
    return "\n".join(lines)


def median_panel(measured: list[tuple[Round, Panel]]) -> Panel:
    """The panel of the round whose longest gap is the median."""
    ordered = sorted(measured, key=lambda pair: pair[0].busy.max)
    return ordered[len(ordered) // 2][1]


if __name__ == "__main__":
    main()
