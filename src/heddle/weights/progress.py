"""Showing a download: a bar on a terminal, one plain line anywhere else, on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Progress(Protocol):
    """What a download reports. `start` and `finish` come in pairs, one pair at a time."""

    def note(self, text: str) -> None:
        """Say one line."""
        ...

    def start(self, label: str, total: int | None) -> None:
        """A download of `total` bytes begins; None if the size is not known."""
        ...

    def update(self, done: int) -> None:
        """`done` bytes of it are here."""
        ...

    def finish(self) -> None:
        """It ended, well or not."""
        ...


class Silent:
    """Shows nothing."""

    def note(self, text: str) -> None:
        pass

    def start(self, label: str, total: int | None) -> None:
        pass

    def update(self, done: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Lines:
    """One plain line per download, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, label: str, total: int | None) -> None:
        size = "" if total is None else f" ({total / 1e6:.0f} MB)"
        self.note(f"downloading {label}{size}")

    def update(self, done: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Bar(Lines):
    """A bar with speed and remaining time."""

    def __init__(self, console: Console) -> None:
        from rich import progress

        super().__init__(console)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        self._bar.start()
        self._task = self._bar.add_task(label, total=total)

    def update(self, done: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def finish(self) -> None:
        self._bar.stop()


def on_console(console: Console | None = None) -> Progress:
    """The one that fits `console`; without one, standard error."""
    from rich.console import Console

    console = console or Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)
