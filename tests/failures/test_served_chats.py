"""Chats over HTTP go on when the process of their device is killed twice; on the default model."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from failures.chats import bodies, stream_all
from failures.chatty_models import REASONING
from fake_loads import until
from heddle.extensions.bench.servers import running
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE = """
import sys
from dataclasses import replace
from heddle.__main__ import main
from heddle.executors.devices import devices

sys.argv[0] = "heddle"
host = "heddle.extensions.processes.load:load_in_process"
devices()["cpu"] = replace(devices()["cpu"], host=host)
main()
"""


@pytest.mark.model
@pytest.mark.soak
def test_chats_go_on_after_their_process_was_killed(model_path: Path, tmp_path: Path) -> None:
    """Sixteen with reasoning, calls and JSON, while eight slots run them."""
    template = tmp_path / "template.jinja"
    template.write_text(REASONING, encoding="utf-8")
    options = ["--port", "0", "--auto-recover", "2", "--chat-template", str(template)]
    command = [sys.executable, "-c", SERVE, "serve", str(model_path), *options]
    with running("heddle", command) as (server, base):
        url = base.removesuffix("/v1")
        expected = stream_all(url, bodies())
        first, killed = child_of(server), list[int]()
        assert stream_all(url, bodies(), seen=killer(server, killed, at=(100, 700))) == expected
        until(lambda: httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200)
        assert killed[0] == first
        assert len({*killed, child_of(server)}) == 3, "three processes, one after another"
    assert not any(answer.errors for answer in expected)
    parts = {name for answer in expected for _, name in answer.texts}
    assert parts > {"content", "reasoning_content", "call 0 name", "call 0 arguments"}


def killer(server: int, killed: list[int], at: tuple[int, ...]) -> Callable[[], None]:
    """A function that kills the process of the device at these calls."""
    calls = count(1)

    def called() -> None:
        if next(calls) in at:
            killed.append(child_of(server))
            os.kill(killed[-1], signal.SIGKILL)

    return called


def child_of(server: int) -> int:
    """The process of the server's device. Waits until there is one."""
    found: list[int] = []

    def find() -> bool:
        lists = Path(f"/proc/{server}/task").glob("*/children")
        pids = [int(pid) for one in lists for pid in one.read_text().split()]
        found[:] = [pid for pid in pids if b"processes.child" in cmdline(pid)]
        return bool(found)

    until(find)
    return found[0]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
