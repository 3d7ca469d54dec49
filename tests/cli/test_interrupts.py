"""Ctrl-C before and after a command: no traceback, and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from heddle.cli import INTERRUPTED
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INTERRUPTS_ITSELF = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""
RUNS = "import sys; from heddle.__main__ import main; sys.argv = ['heddle', '--help']; main()"


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Programs that the tests start take interrupts, also if a shell runs the tests in the
    background: then they ignore interrupts, and a program would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(folder: Path, code: str = RUNS) -> subprocess.CompletedProcess[str]:
    """A Python that finds the modules of `folder` before all others."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""},  # so flushing matters
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_amid_the_imports(tmp_path: Path) -> None:
    """The interrupt comes when the command imports typer, and nothing of Python says so."""
    (tmp_path / "typer.py").write_text(INTERRUPTS_ITSELF)
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_amid_the_command(tmp_path: Path) -> None:
    command = "heddle.cli.app = lambda *_, **__: os.kill(os.getpid(), 2); "
    done = run(tmp_path, f"import os, heddle.cli; heddle.cli._add_commands = bool; {command}{RUNS}")
    assert (done.returncode, done.stderr) == (INTERRUPTED, "")


def test_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """As a second one, while an engine saves its pages."""
    end = "import atexit, os; atexit.register(os.kill, os.getpid(), 2); "
    done = run(tmp_path, end + RUNS)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_command_that_ignores_interrupts_goes_on(tmp_path: Path) -> None:
    """As under nohup, or in the background of a script."""
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    raised = "import atexit, os; atexit.register(os.kill, os.getpid(), 2); "
    done = run(tmp_path, ignore + raised + RUNS)
    assert done.returncode == 0
    assert "serve" in done.stdout


def test_the_process_does_not_wait_for_threads_that_work(tmp_path: Path) -> None:
    """A large body or a grammar kept a stopped server alive for up to 38 s."""
    script = """
import atexit, threading
import heddle.cli
from heddle.__main__ import main

def run(arguments):
    threading.Thread(target=threading.Event().wait).start()
    atexit.register(print, "cleared up")
    return 3

heddle.cli.run = run
main()
"""
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (3, "cleared up\n", "")
