"""The picture of a server at work: lines of text for the size of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from heddle.extensions.top.seen import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.extensions.top.seen import Seen, SeenModel, Step, Work

_LEAST_WIDTH = 20
_SHOWN_CLIENTS = 5


class _Kind(NamedTuple):
    glyph: str
    plain: str
    style: str


_PREFILL = _Kind("▒", ":", "yellow")
_DECODE = _Kind("█", "#", "blue")
_RIGHT = _Kind("▓", "=", "green")
_WRONG = _Kind("▓", "x", "red")
_HELD = _Kind("·", ".", "dim")
_FREE = _Kind(" ", " ", "")
_CACHED = _Kind("▓", "=", "cyan")
_EMPTY = _Kind("░", "-", "dim")
_LEVELS, _PLAIN_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


def picture(seen: Seen, url: str, width: int, height: int, *, plain: bool = False) -> Text:
    """Draw what was seen.

    Args:
        plain: use ASCII, because the terminal's encoding has no blocks.
    """
    painter = _Painter(max(width, _LEAST_WIDTH), seen.now, plain=plain)
    lines = [painter.cut(Text.assemble(("heddle ", "bold"), f"{seen.version}  {url}  q: end"))]
    if seen.trouble:
        lines.append(painter.cut(Text(f"{seen.trouble}; trying again", "red")))
    elif not seen.models:
        lines.append(Text("No model is loaded."))
    if seen.lost:
        lines.append(painter.cut(Text(f"{seen.lost:,} steps lost: too slow", "red")))
    heads = [painter.head(one) for one in seen.models.values()]
    feet = [painter.feet(one) for one in seen.models.values()]
    left = height - len(lines) - sum(map(len, heads)) - sum(map(len, feet))
    for model, head, foot in zip(seen.models.values(), heads, feet, strict=True):
        lines += [*head, *painter.lanes(model, max(1, left // len(heads))), *foot]
    return Text("\n").join(lines[:height])


class _Painter:
    def __init__(self, width: int, now: float, *, plain: bool) -> None:
        self._width, self._now, self._plain = width, now, plain
        self._label = 32 if width >= 70 else 14 if width >= 40 else 4

    @property
    def _bar(self) -> int:
        """The width of the bars of slots."""
        return self._width - self._label

    def cut(self, line: Text) -> Text:
        line.truncate(self._width)
        line.no_wrap = True
        return line

    def head(self, model: SeenModel) -> list[Text]:
        """The figures of a model."""
        sizes, state = model.sizes, model.state
        title = Text(sizes["name"], "bold")
        title.append(
            f"  {sizes['device']}, {sizes['slots']} slots of {sizes['context']:,} tokens", "dim"
        )
        lines = [Text(), self.cut(title)]
        if state:
            lines += self._wrapped(_figures(state))
            lines.append(self._memory(model))
        if state.get("queue"):
            shown = state["queue"][:_SHOWN_CLIENTS]
            lines.append(self.cut(Text("queue  " + ", ".join(f"{one} x {n}" for one, n in shown))))
        return lines

    def lanes(self, model: SeenModel, room: int) -> list[Text]:
        """A line for each slot, as many as there is room for."""
        slots, running = model.sizes["slots"], model.running
        shown = slots if slots <= room else room - 1
        lines = [self._lane(slot, running.get(slot), model.work[slot]) for slot in range(shown)]
        if shown < slots:
            hidden = sum(slot >= shown for slot in running)
            lines.append(self.cut(Text(f"{slots - shown} more slots, {hidden} of them run", "dim")))
        return lines

    def feet(self, model: SeenModel) -> list[Text]:
        """The tokens and the milliseconds of steps, below the bars of slots."""
        columns = self._columns(model.steps)
        tokens = [max((one.prefill + one.decode for one in steps), default=0) for steps in columns]
        times = [max((one.ms for one in steps), default=0.0) for steps in columns]
        return [self._line("tokens", tokens, ""), self._line("step", times, " ms")]

    def _lane(self, slot: int, request: dict[str, Any] | None, work: Iterable[Work]) -> Text:
        if request is None:
            says = "free"
        elif self._label < 30:
            says = request["state"]
        else:
            counts = f"{request['prompt_tokens']:>7,} +{request['output_tokens']:>6,}"
            says = f"{request['state']:<9}{counts}"
        line = Text(f"{slot:>3} {says}"[: self._label - 1].ljust(self._label))
        held_since = request["started"] if request else None
        for kind in self._kinds(work, held_since):
            self._append(line, kind, 1)
        return line

    def _kinds(self, work: Iterable[Work], held_since: float | None) -> list[_Kind]:
        kinds = [_FREE] * self._bar
        if held_since is not None:
            for column in range(self._column(held_since), self._bar):
                kinds[column] = _HELD
        for one in work:
            kind = _kind_of(one)
            for column in range(self._column(one.began), self._column(one.ended) + 1):
                kinds[column] = kind
        return kinds

    def _column(self, time: float) -> int:
        column = int((1 - (self._now - time) / SECONDS) * self._bar)
        return min(self._bar - 1, max(0, column))

    def _columns(self, steps: Iterable[Step]) -> list[list[Step]]:
        columns: list[list[Step]] = [[] for _ in range(self._bar)]
        for one in steps:
            for column in range(self._column(one.began), self._column(one.ended) + 1):
                columns[column].append(one)
        return columns

    def _line(self, name: str, values: Sequence[float], unit: str) -> Text:
        most = max(values)
        levels = _PLAIN_LEVELS if self._plain else _LEVELS
        label = f"{name} {most:,.0f}{unit}"[: self._label - 1].ljust(self._label)
        line = Text(label, "dim")
        line.append("".join(levels[-int(-8 * one // (most or 1))] for one in values))
        return line

    def _memory(self, model: SeenModel) -> Text:
        state = model.state
        held, cache = state["memory"]["model_bytes"], state["memory"]["cache_bytes"]
        used = min(cache, state["pages_used"] * model.sizes["page_bytes"])
        cached = min(state["cached_bytes"], cache - used)
        parts = [
            (_DECODE, "model", held),
            (_PREFILL, "in use", used),
            (_CACHED, "cached", cached),
            (_EMPTY, "free", cache - used - cached),
        ]
        line, width = Text("memory "), max(4, self._width // 5)
        for kind, _, size in parts:
            self._append(line, kind, round(width * size / max(1, held + cache)))
        for kind, name, size in parts:
            line.append(f"  {name} ", kind.style)
            line.append(_size(size))
        return self.cut(line)

    def _wrapped(self, figures: list[tuple[str, str]]) -> list[Text]:
        lines = [Text()]
        for name, value in figures:
            if len(lines[-1]) and len(lines[-1]) + len(name) + len(value) + 4 > self._width:
                lines.append(Text())
            if len(lines[-1]):
                lines[-1].append("   ")
            lines[-1].append(f"{name} ", "dim").append(value, "bold")
        return [self.cut(one) for one in lines]

    def _append(self, line: Text, kind: _Kind, count: int) -> None:
        line.append((kind.plain if self._plain else kind.glyph) * count, kind.style)


def _kind_of(work: Work) -> _Kind:
    if not work.decode:
        return _PREFILL
    if not work.guesses:
        return _DECODE
    return _RIGHT if work.right else _WRONG


def _figures(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("output", f"{state['tokens_per_second']:,.0f} tokens/s"),
        ("prompts", f"{state['prompt_tokens_per_second']:,.0f} tokens/s"),
        ("running", f"{state['running']:,}"),
        ("waiting", f"{state['waiting']:,}"),
        ("first token", _percentiles(state["ttft_ms"])),
        ("between tokens", _percentiles(state["itl_ms"])),
        ("from the cache", _share(state["hit_tokens"], state["query_tokens"])),
        ("guesses right", _share(state["accepted_tokens"], state["drafted_tokens"])),
        ("at work", _share(state["utilisation"], 1)),
    ]


def _percentiles(found: dict[str, float] | None) -> str:
    """Of p50, p90 and p99."""
    if found is None:
        return "-"
    scale, unit = (1e3, "s") if found["p99"] >= 10_000 else (1.0, "ms")
    return (
        "/".join(
            f"{one / scale:,.3g}" if one < 1e3 * scale else f"{one / scale:,.0f}"
            for one in found.values()
        )
        + f" {unit}"
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"
