"""The tables that `heddle bench` prints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from heddle.extensions.bench.figures import FORMULAS
from heddle.extensions.bench.machine import cores_of
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.extensions.bench.profile import Profile
    from heddle.extensions.bench.report import DecodeRow, PromptRow, Report
    from heddle.roofline import Limits

_FLOOR_HEADINGS = ("floor", "bound\nby", "of\nfloor", "over-\nhead")
_PROMPT_HEADINGS = ("at\nonce", "tok/s", "TTFT\np50", "TTFT\nmax", "GMAC/s", *_FLOOR_HEADINGS)
_GAP_HEADINGS = ("ITL\np50", "ITL\np99", "ITL\nmax")
_DECODE_HEADINGS = ("depth", "at\nonce", "tok/s", *_GAP_HEADINGS, "GB/s", *_FLOOR_HEADINGS)

_NOTICEABLE = 0.05
"""Above this share of other work, `other_work_line` advises to measure again."""


@contextmanager
def progress_notes() -> Iterator[Callable[[str], None]]:
    """A function that shows the current measurement on a terminal. Elsewhere it shows nothing."""
    with Console(stderr=True).status("") as status:
        yield status.update


def print_report(report: "Report") -> None:
    """Print the machine and its limits, then prefill, decode, and the formulas."""
    _print_limits(report)
    loads, console = report.loads, Console()
    console.print(
        _table(
            f"prompts of {counted(loads.prompt_tokens, 'token')}, medians of {loads.rounds};"
            " times in ms",
            _PROMPT_HEADINGS,
            map(_prompt_cells, report.prompts),
        )
    )
    console.print(
        _table(
            f"decoding {loads.new_tokens} tokens, medians of {loads.rounds}; times in ms",
            _DECODE_HEADINGS,
            map(_decode_cells, report.decodes),
        )
    )
    for name, formula in FORMULAS.items():
        console.print(f"[dim]{name} = {formula}[/dim]", highlight=False, soft_wrap=True)


def print_profiles(profiles: "Iterable[Profile]") -> None:
    """Print ms per step for each load and kind of instruction, the longest first."""
    for profile in profiles:
        total = sum(profile.seconds.values())
        rows = [
            (kind, _ms(seconds / max(1, profile.steps)), f"{seconds / (total or 1.0):.1%}")
            for kind, seconds in sorted(profile.seconds.items(), key=lambda item: -item[1])
        ]
        title = f"{profile.load}: {counted(profile.steps, 'step')}; times in ms of one thread"
        print(title)
        Console().print(_table("", ("instruction", "per\nstep", "share"), rows))


def _print_limits(report: "Report") -> None:
    machine, limits, work = report.machine, report.limits, report.work
    version = machine["packages"]["heddle"] or "from source"
    token = work.token_multiply_adds + work.row_multiply_adds
    print(
        f"{report.model} on {machine['cpu']}, {cores_of(machine)};"
        f" heddle {version}\n"
        f"limits of {counted(limits.threads, 'thread')}, {limits.isa}, measured now:\n"
        f"  compute {limits.multiply_rate / 1e9:,.0f} GMAC/s ({limits.multiplication})\n"
        f"  memory {limits.memory_rate / 1e9:.1f} GB/s (over {limits.memory_buffer / 1e6:,.0f} MB);"
        f" over {work.weight_bytes / 1e6:,.0f} MB, the size of the weights,"
        f" {limits.weights_rate / 1e9:.1f} GB/s\n"
        f"{_barriers_line(limits)}"
        f"a token takes {token / 1e6:,.0f} million multiply-adds,"
        f" {work.token_multiply_adds / 1e6:,.0f} in a prompt\n"
        f"{other_work_line(report.other_work)}"
    )


def _barriers_line(limits: "Limits") -> str:
    if not limits.barriers:
        return ""
    together = limits.barriers * limits.barrier_seconds
    return (
        f"  threads wait for one another {limits.barriers:,} times a step,"
        f" {limits.barrier_seconds * 1e6:.2f} us each: {together * 1e3:.2f} ms\n"
    )


def other_work_line(share: float | None) -> str:
    """A line about the CPU time that other processes took."""
    if share is None:
        return "the CPU time of other processes is unknown"
    warning = "; measure again on a quiet machine" if share > _NOTICEABLE else ""
    return f"other processes took {share:.0%} of the machine{warning}"


def _prompt_cells(row: "PromptRow") -> tuple[str, ...]:
    return (
        str(row.streams),
        f"{row.rate:.0f}",
        _ms(row.ttft.p50),
        _ms(row.ttft.max),
        f"{row.multiply_rate / 1e9:.0f}",
        _ms(row.floor.seconds),
        row.floor.bound_by,
        f"{row.reached:.0%}",
        f"{row.overhead:.1%}",
    )


def _decode_cells(row: "DecodeRow") -> tuple[str, ...]:
    return (
        str(row.depth),
        str(row.streams),
        f"{row.rate:.0f}" if row.rate >= 100 else f"{row.rate:.1f}",
        _ms(row.itl.p50),
        _ms(row.itl.p99),
        _ms(row.itl.max),
        f"{row.read_rate / 1e9:.1f}",
        _ms(row.floor.seconds),
        row.floor.bound_by,
        f"{row.reached:.0%}",
        f"{row.overhead:.1%}",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}" if seconds < 1 else f"{seconds * 1000:.0f}"


def _table(title: str, headings: "Iterable[str]", rows: "Iterable[tuple[str, ...]]") -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 0, 0, 1))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
