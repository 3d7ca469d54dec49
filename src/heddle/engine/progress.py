"""Progress bar for a batch of prompts, on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 16
"""Fewest prompts in a batch for which the bar is shown by default."""


@contextmanager
def batch_progress(prompts: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error while the block runs.

    The block gets a function that counts one prompt as done. If `wanted` is None, the bar is shown
    only for MANY prompts or more on a terminal, and removed at the end.
    """
    if wanted is False or (wanted is None and prompts < MANY):
        yield _nothing
        return
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if wanted is None and not console.is_terminal:
        yield _nothing
        return
    columns = (
        progress.TextColumn("generating"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=wanted is None) as bar:
        task = bar.add_task("", total=prompts)
        yield lambda: bar.advance(task)


def _nothing() -> None:
    pass
