"""Draws the pictures in docs/pictures from their sources.

    python scripts/draw_pictures.py            # writes them
    python scripts/draw_pictures.py --check    # exits with 1 if one is out of date

`life-of-a-token.svg` comes from the tables in docs/index.md, `rooms.svg` from the import directions
in scripts/check_imports.py, `speed.svg` from benchmarks/results, and `engram-bias.svg` from the
reference of the bias.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from check_imports import MAY_IMPORT
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.reference.engram_bias import engram_bias

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
LIFE = ROOT / "docs" / "index.md"

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2430; }
.small { font-size: 11px; fill: #5b6472; }
.head { font-size: 15px; font-weight: 600; }
.mono { font: 12px ui-monospace, monospace; }
.ground { fill: #ffffff; }
.box { fill: #f1f4fa; stroke: #c2cad8; }
.loop { fill: #e3effd; stroke: #7fb0e6; }
.engine { fill: #e5f5e8; stroke: #7dbf8a; }
.compute { fill: #fdefdc; stroke: #dfa95b; }
.first { fill: #2f6fd0; } .second { fill: #a9b2c0; }
.arrow { stroke: #7a8496; fill: none; } .tip { fill: #7a8496; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e8f0; } .small { fill: #9aa5b8; } .ground { fill: #161a22; }
.box { fill: #232936; stroke: #465064; } .loop { fill: #17304d; stroke: #3f74b0; }
.engine { fill: #173822; stroke: #3f8a52; } .compute { fill: #43300f; stroke: #a8772c; }
.first { fill: #5b9bf5; } .second { fill: #6b7687; }
.arrow { stroke: #8893a7; } .tip { fill: #8893a7; }
}
</style>"""


@dataclass(frozen=True)
class Hop:
    """A row of the page's tables. `by` is the caller's row; None if no row calls this row."""

    row: int
    by: int | None
    thread: str
    file: str
    function: str
    says: str


def hops(page: str) -> list[Hop]:
    """All rows of the tables on the page about the life of a token."""
    found = []
    for line in page.splitlines():
        if re.match(r"\| \d", line):
            row, by, thread, file, function, says = (x.strip() for x in line.strip("|").split("|"))
            caller = int(by) if by.isdecimal() else None
            found.append(Hop(int(row), caller, thread, file, function, says))
    return found


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">\n{STYLE}\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>\n'
        f'<rect class="ground" width="{width}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'
    )


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    )


def arrow(path: str) -> str:
    return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'


def line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="arrow" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>'


def thick_line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    corners = ((x, y - 2), (to_x, to_y - 2), (to_x, to_y + 2), (x, y + 2))
    points = " ".join(f"{at:.1f},{height:.1f}" for at, height in corners)
    return f'<polygon class="{kind}" points="{points}"/>'


def life_of_a_token() -> str:
    """Boxes from top to bottom, in a column for each thread; an arrow leads to the next row."""
    columns = {"event loop": (20, "loop"), "engine thread": (340, "engine")}
    columns["compute threads"] = (660, "compute")
    width, height, pitch, top = 300, 40, 52, 54
    parts = [text(x + width / 2, 28, name, "head", "middle") for name, (x, _) in columns.items()]
    rows = hops(LIFE.read_text("utf-8"))
    before = None
    for index, hop in enumerate(rows):
        x, kind = columns[hop.thread]
        y = top + index * pitch
        file = hop.file.removeprefix("src/heddle/")
        parts.append(box(x, y, width, height, kind))
        parts.append(text(x + 10, y + 17, f"{hop.row}  {hop.function}", "mono"))
        parts.append(text(x + 10, y + 33, file, "small"))
        if before is not None:
            above = before + width / 2
            middle = y - (pitch - height) / 2
            parts.append(
                arrow(f"M{above:g} {y - pitch + height:g}V{middle:g}H{x + width / 2:g}V{y}")
            )
        before = x
    return svg(980, top + len(rows) * pitch + 10, "The life of a token, from HTTP to SSE", parts)


LAYERS = (
    ("extensions",),
    ("cli",),
    ("server",),
    ("hosting",),
    ("engine",),
    ("loading",),
    ("drafting", "executors", "text"),
    ("scheduler", "models"),
    ("cache", "weights", "_native"),
    ("disk",),
)
"""Rooms from top to bottom. A room imports only from lower layers; `rooms` checks this."""

ROOM_SAYS = {
    "extensions": "devices, APIs, commands",
    "cli": "serve, chat, pull, inspect",
    "server": "HTTP, the APIs' shapes, SSE",
    "hosting": "the models of a process",
    "engine": "one model: its thread, streams",
    "loading": "from a name to a loaded model",
    "scheduler": "which tokens in which step",
    "drafting": "guesses of next tokens",
    "executors": "plans to arrays and kernels",
    "text": "tokenizer, chat, grammars",
    "cache": "pages and the prefix tree",
    "models": "architectures, as graphs",
    "_native": "C++: program, kernels, sampler",
    "disk": "evicted prefixes in files",
    "weights": "model files, sources, types",
}


def rooms() -> str:
    """A box for each room, and an arrow for each direction of imports."""
    width, height, pitch, left = 220, 52, 96, 40
    places = {}
    parts, boxes = [], []
    for depth, layer in enumerate(LAYERS):
        gap = (900 - len(layer) * width) / (len(layer) + 1)
        for index, room in enumerate(layer):
            x, y = left + gap + index * (width + gap), 20 + depth * pitch
            places[room] = (x, y, depth)
            boxes.append(box(x, y, width, height, "compute" if room == "_native" else "box"))
            boxes.append(text(x + width / 2, y + 22, room.strip("_"), "head", "middle"))
            boxes.append(text(x + width / 2, y + 40, ROOM_SAYS[room], "small", "middle"))
    for room, (x, y, depth) in places.items():
        for target in sorted(MAY_IMPORT[room]):
            to_x, to_y, to_depth = places[target]
            if to_depth <= depth:
                raise ValueError(f"{room} imports {target}, which is not below it in LAYERS")
            parts.append(arrow(f"M{x + width / 2:g} {y + height}L{to_x + width / 2:g} {to_y:g}"))
    return svg(
        980, 20 + len(LAYERS) * pitch, "Rooms of the package and what they import", parts + boxes
    )


MODELS = (
    ("smollm2-135m-avx512", "SmolLM2-135M Q4_1"),
    ("qwen2.5-coder-1.5b-avx512", "Qwen2.5-Coder-1.5B Q4_K_M"),
)


def rates_in(name: str) -> dict[int, tuple[float, float]]:
    """For each number of streams: tokens per second of Heddle and of the peer."""
    content = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8")
    found = {}
    for scenario, figures in json.loads(content)["summary"].items():
        # Two generations of benchmarks: "generate x4", and "decode x4 at 128".
        if streams := re.match(r"(?:generate|decode) x(\d+)", scenario):
            heddle, peer = (figures[who] for who in ("heddle", "llama.cpp"))
            figure = "steady_tok_s" if "steady_tok_s" in heddle else "decode_tok_s"
            found[int(streams[1])] = (heddle[figure], peer[figure])
    return found


def bar(x: float, bottom: float, height: float, rate: float, kind: str) -> list[str]:
    """A bar with its figure above it."""
    place = f'x="{x:g}" y="{bottom - height:.1f}" width="34" height="{height:.1f}"'
    label = f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
    return [
        f'<rect class="{kind}" {place}/>',
        text(x + 17, bottom - height - 5, label, "small", "middle"),
    ]


def speed() -> str:
    """Tokens per second of 1 to 8 streams, Heddle beside llama.cpp, from benchmarks/results."""
    parts = [
        box(20, 14, 12, 12, "first"),
        text(38, 25, "Heddle"),
        box(110, 14, 12, 12, "second"),
        text(128, 25, "llama.cpp"),
        text(230, 25, "tokens per second, all streams together; 2 cores, over HTTP", "small"),
    ]
    bottom, tallest = 250, 165
    for panel, (name, title) in enumerate(MODELS):
        left = 20 + panel * 375
        parts.append(text(left, 56, title, "head"))
        rates = rates_in(name)
        most = max(max(pair) for pair in rates.values())
        for index, (streams, pair) in enumerate(rates.items()):
            x = left + index * 88
            for side, rate in enumerate(pair):
                kind = ("first", "second")[side]
                parts += bar(x + side * 38, bottom, tallest * rate / most, rate, kind)
            unit = "stream" if streams == 1 else "streams"
            parts.append(text(x + 36, bottom + 18, f"{streams} {unit}", "small", "middle"))
    return svg(760, 280, "Tokens per second of Heddle and llama.cpp at 1 to 8 streams", parts)


class _Certain:
    """An engram table that predicts token 0 with probability `p`."""

    def __init__(self, p: float) -> None:
        self.p = p

    def predict(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        return [(0, self.p)]


def engram_bias_picture() -> str:
    """The bias of engram tables over the probability, in both forms, for an alpha of 1."""
    left, right, middle, scale = 70, 540, 200, 6.6
    parts = [
        text(left, 22, "bias at alpha 1, by p (logarithmic)", "head"),
        line(left, middle, right, middle),
        text(right + 12, middle + 5, "tokens that the table does not predict: 0"),
    ]
    for height in (-20, -10, 10, 20):
        y = middle - scale * height
        parts += [line(left, y, left + 6, y), text(left - 8, y + 4, f"{height}", "small", "end")]
    for power in range(-4, 1):
        x = right + (right - left) * power / 4
        parts.append(line(x, middle - 4, x, middle + 4))
        parts.append(text(x, middle - 10, f"{10.0**power:g}", "small", "middle"))
    for literal, kind, label in ((False, "first", "lift (default)"), (True, "second", "literal")):
        bias = [
            engram_bias(EngramBias(((_Certain(p), 1.0),), 1.0, literal), [])[0] for p in (1e-4, 1)
        ]
        low, high = (middle - scale * one for one in bias)
        parts.append(thick_line(left, low, right, high, kind))
        beside = (left + 10, low + 18) if literal else (right + 12, high + 5)
        parts.append(text(*beside, label))
    return svg(860, 370, "Bias of engram tables by probability, in both forms", parts)


DRAWN = {
    "life-of-a-token.svg": life_of_a_token,
    "rooms.svg": rooms,
    "speed.svg": speed,
    "engram-bias.svg": engram_bias_picture,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures in docs/pictures.")
    parser.add_argument(
        "--check", action="store_true", help="report pictures that are out of date, without writing"
    )
    check = parser.parse_args().check
    old = []
    for name, draw in DRAWN.items():
        path, picture = PICTURES / name, draw()
        if not path.exists() or path.read_text("utf-8") != picture:
            old.append(name)
            if not check:
                path.write_text(picture, "utf-8")
    for name in old:
        print(f"docs/pictures/{name} {'is out of date; draw it again' if check else 'drawn'}")
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
