"""Starts servers to measure, as child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.config import ServerConfig
from heddle.errors import PeerError
from heddle.extensions.bench.remote import connect
from heddle.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heddle.config import EngineConfig
    from heddle.extensions.bench.exchange import Server

START_SECONDS = 300.0
_STOP_SECONDS = 10.0


@contextmanager
def heddle_server(model: str, config: EngineConfig) -> Iterator[Server]:
    """Run `heddle serve` of the package that this interpreter imports, on a free port.

    Raises:
        PeerError: the server did not start; the message ends with its output.
    """
    command = [sys.executable, "-m", "heddle", "serve", model, "--port", "0"]
    # A penalty that the model's files recommend would cost time that a peer does not spend. The
    # outputs of a benchmark repeat themselves: guesses would be right more often than in use.
    config = replace(config, generation_config="none", speculation="off")
    # Ignore the user's variables for servers: this server listens locally and needs no key.
    texts = {each.variable: "" for each in settings(ServerConfig)}
    texts |= {each.variable: _text(each.default) for each in settings(config)}
    with running("heddle", command, texts) as (pid, url):
        yield connect("heddle", url, pid=pid)


def _text(value: object) -> str:
    """The value of a setting as its variable has it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value) if isinstance(value, bool) else value)


@contextmanager
def running(
    name: str, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[tuple[int, str]]:
    """Run a child process that prints `ready URL` when it serves. Yields its process id and URL.

    `variables` are added to its environment. To end the child, this sends a signal and closes the
    child's standard input.

    Raises:
        PeerError: the child ended before this line, or did not print it within START_SECONDS.
    """
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | (variables or {}),
        )
        assert child.stdout is not None
        try:
            watchdog = threading.Timer(START_SECONDS, child.kill)
            watchdog.start()
            try:
                ready = next((line for line in child.stdout if line.startswith("ready ")), None)
            finally:  # without this, an interrupted program would wait for the timer
                watchdog.cancel()
            if ready is None:
                log.seek(0)
                raise PeerError(f"{name} did not start: {log.read()[-2000:].strip()}")
            yield child.pid, ready.split()[1]
        finally:
            _stop(child)


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.communicate(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
