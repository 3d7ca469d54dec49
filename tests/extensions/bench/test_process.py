"""Figures of processes: of this one, and of a child of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from heddle.extensions.bench.process import (
    Memory,
    Watch,
    open_files,
    resident_bytes,
    server_process,
    threads,
    watch_device,
    watch_resident,
)
from patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTES = 40 << 20
HOARDER = f"hoard = bytearray(b'x' * {MEGABYTES}); print('ready', flush=True); input()"


def test_the_process_behind_a_url_is_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://localhost:{listener.getsockname()[1]}/v1"
        assert server_process(url) is None, "nobody listens"
        listener.listen()
        assert server_process(url) == os.getpid()
    assert server_process(url.replace("localhost", "192.0.2.1")) is None


def test_memory_of_children_counts() -> None:
    alone = resident_bytes(os.getpid())
    command = [sys.executable, "-c", HOARDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline()
        assert resident_bytes(child.pid) > MEGABYTES
        assert resident_bytes(os.getpid()) > alone + MEGABYTES
        child.communicate(b"\n")
    assert resident_bytes(child.pid) is None
    assert open_files(child.pid) is threads(child.pid) is None
    assert open_files(os.getpid()) > 2
    assert threads(os.getpid()) >= 1


def test_a_watch_has_the_first_the_most_and_the_last() -> None:
    amounts, enough = iter([3, 9]), threading.Event()

    def sample() -> int:
        amount = next(amounts, 5)
        if amount == 5:
            enough.set()
        return amount

    with Watch(sample, 0.0001) as watch:
        assert enough.wait(PATIENCE)
    assert watch.memory == Memory(before=3, peak=9, after=5)


def test_what_is_unknown_stays_unknown() -> None:
    for watch in (watch_resident(None), watch_device(None)):
        with watch:
            pass
        assert watch.memory is None


@pytest.mark.parametrize(
    ("script", "memory"),
    [
        ("echo 10; echo 32", Memory(42 << 20, 42 << 20, 42 << 20)),
        ("echo N/A", None),
        ("exit 9", None),
    ],
)
def test_memory_of_all_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, memory: Memory | None
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with watch_device(os.getpid()) as watch:
        pass
    assert watch.memory == memory
