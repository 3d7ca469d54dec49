"""How far a batch of prompts is, on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 16
"""Prompts from which on a batch is worth a bar."""


@contextmanager
def batch_progress(prompts: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar on standard error while the block runs; what it gives counts one prompt as done.

    `wanted` None shows it for many prompts on a terminal, and takes it away at the end.
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
