"""Deployments as a user starts them: on a cluster of their own, and on one that runs already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
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


RAY = (sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts")


@dataclass
class Head:
    """The first machine of a cluster that runs already.

    Attributes:
        process: what Ray started all others from.
        address: where machines join.
        url: where deployments answer.
        folder: for files, and those of Ray.
    """

    process: subprocess.Popen[bytes]
    address: str
    url: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that finds the cluster's token. Ray learns no more."""
        return _without_mode() | {"RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}

    @property
    def replicas(self) -> set[int]:
        """Ids of the processes of the replicas."""
        found = descendants(self.process.pid)
        return {pid for pid in found if command_line(pid).startswith(REPLICA)}

    def command(self, *arguments: str, address: str = "") -> list[str]:
        """`heddle deploy` to this cluster."""
        port = self.url.rpartition(":")[2]
        where = ("--address", address or self.address, "--port", port)
        return [sys.executable, "-W", "ignore", "-m", "heddle", "deploy", *where, *arguments]

    def deploy(self, *arguments: str, address: str = "") -> str:
        """What the command says when it has ended with success."""
        command = self.command(*arguments, address=address)
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _without_mode() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


@contextmanager
def cluster(cpus: int) -> Iterator[Head]:
    """Start a cluster with a token, as `ray start --head` does where there is one."""
    with tempfile.TemporaryDirectory() as name:
        folder, (port, http) = Path(name), _free_ports(2)
        (folder / "token").write_text("5" * 64)
        options = (
            *("--head", "--port", str(port), "--num-cpus", str(cpus)),
            *("--include-dashboard", "false", "--temp-dir", str(folder / "ray")),
        )
        environment = _without_mode() | {"RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        with machine(folder / "head", *options, environment=environment) as process:
            yield Head(process, f"127.0.0.1:{port}", f"http://127.0.0.1:{http}", folder)


@contextmanager
def machine(
    log: Path, *options: str, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ray start` until the end, and kill all that it has started."""
    command = [*RAY, "start", "--block", "--disable-usage-stats", *options]
    with log.open("w") as said:
        process = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        until(lambda: process.poll() is not None or "Ray runtime started" in log.read_text())
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in free]
