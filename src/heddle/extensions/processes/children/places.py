"""Where children start: here as processes of this machine, or where an extension starts them.

Processes of devices start here. Ranks start at the process's place, which a replica of several
machines sets (`use_place`).
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from heddle.errors import EngineFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Process(Protocol):
    """The process of a child. Any thread may call all methods."""

    @property
    def where(self) -> str:
        """Names it in errors, such as `process 71`."""
        ...

    def kill(self) -> None:
        """End it at once, and its connection. Does not wait. Idempotent."""
        ...

    def ending(self, seconds: float | None = None) -> str | None:
        """Wait until it has ended, and return how; None if it has not after `seconds`.

        Without `seconds`, it was killed: this waits as long as its end may take.
        """
        ...


class Started(NamedTuple):
    """A process, and this end of its connection. Its program has the other end."""

    process: Process
    connection: socket.socket


class Place(Protocol):
    """Where ranks start.

    Attributes:
        address: IP address of this machine for the ranks; empty: they are on this machine.
    """

    address: str

    def start(self, module: str, names: Sequence[str]) -> list[Started]:
        """Start a process for each name. It runs `main(DESCRIPTOR)` of `module`.

        Raises:
            EngineFailedError: one does not start. None is left.
        """
        ...


class LocalProcess:
    """A process of this machine; see :class:`Process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def where(self) -> str:
        return f"process {self.pid}"

    def kill(self) -> None:
        self._process.kill()

    def ending(self, seconds: float | None = None) -> str | None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        with suppress(ValueError):
            how += f" ({signal.Signals(-code).name})" if code < 0 else ""
        return how


def start_here(module: str, name: str) -> Started:
    """Start `python -m module DESCRIPTOR`. `name` names the child in errors.

    Raises:
        EngineFailedError: the process does not start.
    """
    own, other = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C goes to the group of the parent only
        )
    except OSError as error:
        own.close()
        raise EngineFailedError(f"{name} does not start: {error.strerror}") from error
    finally:
        other.close()
    return Started(LocalProcess(process), own)


class _Here:
    """This machine; see :class:`Place`."""

    address = ""

    def start(self, module: str, names: Sequence[str]) -> list[Started]:
        started: list[Started] = []
        with ExitStack() as undo:
            for name in names:
                started.append(start_here(module, name))
                undo.callback(started[-1].process.ending)
                undo.callback(started[-1].process.kill)
            undo.pop_all()
        return started


_places: list[Place] = [_Here()]


def place() -> Place:
    """Where the ranks of this process's models start."""
    return _places[-1]


def use_place(other: Place) -> None:
    """Let the ranks of models that this process loads from now on start at another place."""
    _places.append(other)
