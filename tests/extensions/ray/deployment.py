"""A deployment on a cluster of its own, started as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heddle_failing import FOLDER

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(__file__).parent / "package"
ENTRY_POINT = "[heddle]\nfailing = heddle_failing:EXTENSION\n"
REPLICAS, SLOTS, QUEUE = 3, 8, 24
"""Of the deployment of most tests. Each replica has so many slots, and places in its queue."""
REPLICA = "ray::ServeReplica:heddle:replicas"


@dataclass
class Deployment:
    """One that answers.

    Attributes:
        process: of the command.
        url: of its ingress.
        lines: what the command printed until it was ready.
        fails: folder of the files that let replicas fail.
    """

    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    fails: Path

    @property
    def replicas(self) -> list[int]:
        """Ids of the processes of the replicas, the oldest first."""
        found = descendants(self.process.pid)
        return sorted(pid for pid in found if command_line(pid).startswith(REPLICA))

    @property
    def steps(self) -> int:
        """Steps that all replicas have made so far."""
        counts = [one.read_text() for one in self.fails.glob("*.steps")]
        return sum(int(one or 0) for one in counts)

    def until_complete(self, count: int, without: int = 0) -> None:
        """Wait until so many replicas run, and one does not."""
        until(lambda: len(self.replicas) == count and without not in self.replicas)


def until(is_so: Callable[[], bool], every: float = 0.05) -> None:
    """Wait until a condition holds. Looks each `every` s."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(every)  # lets the cluster work


def descendants(pid: int) -> set[int]:
    """Processes that a process has started, and those that these have started."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(one) for one in task.read_text().split()}
        except OSError:  # the thread has ended
            continue
        found |= children
        for child in children:
            found |= descendants(child)
    return found


def command_line(pid: int) -> str:
    """Of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that finds this Heddle, and the device `failing`."""
    info = folder / "heddle_failing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heddle-failing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    paths = [str(folder), str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), FOLDER: str(folder)}


@contextmanager
def deployed(*arguments: str) -> Iterator[Deployment]:
    """Run `heddle deploy`, and end it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        errors = folder / "errors"
        command = [sys.executable, "-m", "heddle", "deploy", "--port", "0", *arguments]
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                command,
                env=environment(folder),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,  # one that hangs is killed with all that it started
            )
        try:
            lines = _until_ready(process)
            assert lines, errors.read_text()
            url = next(line.split()[1] for line in lines if line.startswith("ready"))
            yield Deployment(process, url.removesuffix("/v1"), lines, folder)
        finally:
            end(process)


def _until_ready(process: subprocess.Popen[str]) -> list[str]:
    """The lines until the last one; empty if the process ends before."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("stop"):
            return lines
    return []


def end(process: subprocess.Popen[str]) -> None:
    """End a command by a signal, and see that all that it started ends with it."""
    started = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # Ctrl-C takes the same way
    try:
        assert process.wait(PATIENCE) == 0
        until(lambda: not any(map(command_line, started)))
    finally:
        for pid in started:
            if command_line(pid):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()  # type: ignore[union-attr]
