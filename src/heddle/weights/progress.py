"""Shows the progress of long work, mostly downloads: a bar on a terminal, lines anywhere else.

All output goes to standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

BYTES = "bytes"


class Progress(Protocol):
    """Takes reports of long work. Each `start` needs a `finish` before the next `start`."""

    def note(self, text: str) -> None:
        """Show one line."""
        ...

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = BYTES
    ) -> None:
        """Begin work on `total` bytes, or of another `unit`; None if the size is not known.

        `label` names the work. `quick` work takes seconds; its bar goes away at the end.
        """
        ...

    def update(self, done: int) -> None:
        """Report that `done` of the total are done."""
        ...

    def part(self, name: str, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of one file of the work are done."""
        ...

    def finish(self) -> None:
        """End the work, with success or without."""
        ...


class Silent:
    """Shows nothing."""

    def note(self, text: str) -> None:
        pass

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = BYTES
    ) -> None:
        pass

    def update(self, done: int) -> None:
        pass

    def part(self, name: str, done: int, total: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Lines:
    """Shows one plain line per download, for logs. Shows no quick work."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = BYTES
    ) -> None:
        if total is None:
            size = ""
        elif unit == BYTES:
            size = f" ({total / 1e6:,.{0 if total >= 10**7 else 1}f} MB)"
        else:
            size = f" ({total:,} {unit})"
        if not quick:
            self.note(f"{label}{size}")

    def update(self, done: int) -> None:
        pass

    def part(self, name: str, done: int, total: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Bar(Lines):
    """Shows a bar with speed and remaining time. The bar of quick work goes away at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._parts: dict[str, TaskID] = {}

    def start(
        self, label: str, total: int | None, *, quick: bool = False, unit: str = BYTES
    ) -> None:
        from rich import progress

        amount: list[progress.ProgressColumn] = [
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
        ]
        if unit != BYTES:
            amount = [progress.MofNCompleteColumn(), progress.TextColumn(unit)]
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            *amount,
            progress.TimeRemainingColumn(),
            console=self._console,
            transient=quick,
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total)
        self._parts = {}

    def update(self, done: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def part(self, name: str, done: int, total: int) -> None:
        if self._bar is None:
            return
        if name not in self._parts:
            self._parts[name] = self._bar.add_task(f"  {name}", total=total)
        self._bar.update(self._parts[name], completed=done, visible=done < total)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def on_console(console: Console | None = None) -> Progress:
    """A `Bar` if `console` is a terminal, else `Lines`. The default console is standard error."""
    from rich.console import Console

    console = console or Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)
