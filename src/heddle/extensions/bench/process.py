"""Memory of a server's process while a load runs, from /proc and from nvidia-smi."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROC = Path("/proc")
_RESIDENT_SECONDS = 0.05
_DEVICE_SECONDS = 1.0  # nvidia-smi takes up to half a second
_LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes before a load, the most during the load, and bytes after it."""

    before: int
    peak: int
    after: int


class Watch:
    """Samples a number of bytes in a thread. A context manager around the load."""

    def __init__(self, sample: Callable[[], int | None], seconds: float) -> None:
        """`sample` returns bytes, None if they are unknown. It is called every `seconds`."""
        self._sample = sample
        self._seconds = seconds
        self._samples: list[int | None] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._samples.append(self._sample())
        if self._samples[0] is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._samples[0] is not None:
            self._thread.join()
            self._samples.append(self._sample())

    @property
    def memory(self) -> Memory | None:
        """The figures after the block; None if the bytes are unknown."""
        known = [each for each in self._samples if each is not None]
        return Memory(known[0], max(known), known[-1]) if known else None

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._samples.append(self._sample())


def watch_resident(pid: int | None) -> Watch:
    """Watch the resident memory of a process and its descendants."""
    return Watch(lambda: None if pid is None else resident_bytes(pid), _RESIDENT_SECONDS)


def watch_device(pid: int | None) -> Watch:
    """Watch the memory in use of all NVIDIA devices, if the process `pid` is on this machine."""
    tool = None if pid is None else shutil.which("nvidia-smi")
    return Watch(lambda: None if tool is None else _device_bytes(tool), _DEVICE_SECONDS)


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process and its descendants; None if there is no such process."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = []
    for each in _family(pid):
        try:
            sizes.append(int((_PROC / f"{each}/statm").read_text().split()[1]))
        except (OSError, IndexError):  # it has ended
            continue
    return sum(sizes) * page if sizes else None


def open_files(pid: int) -> int | None:
    """How many file descriptors a process has open; None if there is no such process."""
    return _entries(pid, "fd")


def threads(pid: int) -> int | None:
    """How many threads a process has; None if there is no such process."""
    return _entries(pid, "task")


def server_process(url: str) -> int | None:
    """The process that listens at `url`; None if it is not ours, or not on this machine."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_here(parts.hostname or ""):
        return None
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    pids = sorted(int(path.name) for path in _PROC.glob("[0-9]*"))
    return next((pid for pid in pids if sockets & set(_links(pid))), None)


def _is_here(host: str) -> bool:
    """Whether `host` is an address of this machine: a socket can be bound to it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _listening(port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on `port`."""
    for table in ("tcp", "tcp6"):
        path = _PROC / "net" / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                yield rest[5]


def _links(pid: int) -> Iterator[str]:
    try:
        for path in (_PROC / f"{pid}/fd").iterdir():
            yield os.readlink(path)  # noqa: PTH115 - Path.readlink would make a path of it
    except OSError:  # another user's process, or one that has ended
        return


def _family(pid: int) -> Iterator[int]:
    yield pid
    for path in (_PROC / f"{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _entries(pid: int, folder: str) -> int | None:
    try:
        return len(os.listdir(_PROC / f"{pid}/{folder}"))  # noqa: PTH208 - only their number
    except OSError:
        return None


def _device_bytes(tool: str) -> int | None:
    command = [tool, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return sum(int(line) << 20 for line in lines.stdout.split())  # MiB
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
