"""Servers under measurement, each a child process on a free port of the loopback address."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOST = "127.0.0.1"
_PEER = Path(__file__).with_name("llamacpp_server.py")
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers, and the name it gives its model.

    `extras` are the fields its completion requests need beside OpenAI's, so that all do the same
    work: no stop at an end-of-sequence token, nothing taken over from an earlier prompt.
    """

    name: str
    pid: int
    port: int
    model: str
    extras: Mapping[str, Any]


@contextmanager
def heddle(model: str, threads: int, slots: int, options: Sequence[str] = ()) -> Iterator[Server]:
    """`heddle serve` of the package this interpreter imports."""
    port = _free_port()
    command = [sys.executable, "-m", "heddle", "serve", model, "--host", HOST, "--port", str(port)]
    command += ["--threads", str(threads), "--slots", str(slots), *options]
    with _running("heddle", command, port) as pid:
        yield Server("heddle", pid, port, _model(port), {"ignore_eos": True})


@contextmanager
def llamacpp(
    model: Path, threads: int, slots: int, context: int = 1024, options: Sequence[str] = ()
) -> Iterator[Server]:
    """llama.cpp's server with `context` tokens per slot and continuous batching, its default."""
    port = _free_port()
    command = [sys.executable, str(_PEER), str(model), "--port", str(port)]
    command += ["--threads", str(threads), "--slots", str(slots), "--context", str(context)]
    command += options
    with _running("llama.cpp", command, port) as pid:
        yield Server(
            "llama.cpp", pid, port, _model(port), {"ignore_eos": True, "cache_prompt": False}
        )


def _model(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=5) as answer:
        name: str = json.load(answer)["data"][0]["id"]
        return name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(name: str, command: list[str], port: int) -> Iterator[int]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            if not _healthy(process, port):
                log.seek(0)
                raise SystemExit(
                    f"{name} did not start:\n{' '.join(command)}\n{log.read()[-4000:]}"
                )
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    return False
