"""The plot of `gaps.py`: all gaps of the running streams over time, one panel for each server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, PANEL, LEFT, RIGHT, TOP, BETWEEN = 860, 190, 64, 16, 34, 50
LONGEST, DECADES = 10.0, 4
"""Seconds at the top of the logarithmic axis, and the number of powers of ten on the axis."""

INK, GRID, DOTS, BAND = "#222222", "#dddddd", "#2563a8", "#f6e7c8"


@dataclass(frozen=True, slots=True)
class Panel:
    """The data of one server in one round. Times are seconds since the newcomer was sent.

    Attributes:
        title: the text above the panel.
        gaps: end and length of each gap of a running stream.
        first_token: time of the newcomer's first token.
    """

    title: str
    gaps: Sequence[tuple[float, float]]
    first_token: float


def svg(panels: Sequence[Panel], *, before: float = 1.0, after: float = 1.0) -> str:
    """The panels over one time axis, from `before` the newcomer to `after` its last token."""
    end = max(panel.first_token for panel in panels) + after
    height = len(panels) * (PANEL + BETWEEN) + TOP
    drawn = "\n".join(
        _panel(panel, TOP + index * (PANEL + BETWEEN), -before, end)
        for index, panel in enumerate(panels)
    )
    caption = "seconds since a long prompt was sent; shaded until its first token"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" font-family="sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{drawn}\n'
        f"{_text(WIDTH / 2, height - 8, caption, 'middle')}\n</svg>\n"
    )


def _panel(panel: Panel, top: float, begin: float, end: float) -> str:
    def x(seconds: float) -> float:
        return LEFT + (seconds - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        shortest = LONGEST / 10**DECADES  # two outputs in one packet have no gap
        depth = math.log10(LONGEST / min(LONGEST, max(shortest, seconds))) / DECADES
        return top + PANEL * depth

    band = x(panel.first_token) - x(0)
    parts = [
        _text(LEFT, top - 8, panel.title, "start"),
        f'<rect x="{x(0):.1f}" y="{top}" width="{band:.1f}" height="{PANEL}" fill="{BAND}"/>',
    ]
    for power in range(DECADES + 1):
        gap = LONGEST / 10**power
        parts.append(_line(LEFT, y(gap), WIDTH - RIGHT, y(gap)))
        label = f"{gap:g} s" if gap >= 1 else f"{1e3 * gap:g} ms"
        parts.append(_text(LEFT - 6, y(gap) + 4, label, "end"))
    for second in range(math.ceil(begin), math.floor(end) + 1):
        parts.append(_line(x(second), top + PANEL, x(second), top + PANEL + 4))
        parts.append(_text(x(second), top + PANEL + 17, str(second), "middle"))
    dots = "".join(
        f"M{x(moment):.1f} {y(gap):.1f}h0" for moment, gap in panel.gaps if begin <= moment <= end
    )
    parts.append(
        f'<path d="{dots}" fill="none" stroke="{DOTS}" stroke-width="3" stroke-linecap="round"'
        ' stroke-opacity="0.6"/>'
    )
    return "\n".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
