"""SIGHUP: a server reads its file again while it serves. With real processes, over sockets."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gguf_writer import write_gguf
from heddle.cli.logs import logging_to_stderr
from models.tiny.llama import PLAIN
from patience import PATIENCE
from tiny_hub import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WRITTEN = """port = 0
slots = 2
api_key = ["sk-one"]
admin_key_file = "{keys}"
[models.tiny]
source = "{model}"
[models.other]
source = "{model}"
queue = 3
"""


class Server:
    """A server in a process of its own."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.path = path
        model = write_gguf(path.with_name("a.gguf"), PLAIN.metadata() | TOKENIZER, PLAIN.tensors())
        self.keys = path.with_name("keys")
        self.keys.write_text("sk-boss")
        self.text = WRITTEN.format(model=model, keys=self.keys)
        path.write_text(self.text)
        path.chmod(0o600)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "heddle", "serve", "--config", str(path), "--kv-cache", "16M"],
            env=os.environ | {"HEDDLE_PAGE": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
        self.log: Queue[str] = Queue()
        threading.Thread(target=self._read_log, daemon=True).start()
        assert self.process.stdout is not None
        ready = next(line for line in self.process.stdout if line.startswith("ready"))
        self.url = ready.split()[1]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.put(line)

    def line_with(self, word: str) -> str:
        """The next line of the log that has a word."""
        while word not in (line := self.log.get(timeout=PATIENCE)):
            pass
        return line

    def hang_up(self, text: str) -> str:
        """Write the file, send SIGHUP, and return the line of the log about it."""
        self.path.write_text(text)
        self.process.send_signal(signal.SIGHUP)
        return self.line_with("settings")

    def status(self, key: str, path: str = "models", **body: Any) -> int:
        method = "POST" if body else "GET"
        headers = {"authorization": f"Bearer {key}"}
        url = f"{self.url}/{path}"
        answer = httpx.request(method, url, headers=headers, json=body or None, timeout=PATIENCE)
        return answer.status_code


@contextmanager
def serving(path: Path, **more: Any) -> Iterator[Server]:
    server = Server(path, **more)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def test_keys_limits_and_the_level_of_the_log_change(tmp_path: Path) -> None:
    two = {"model": "tiny", "prompt": [1], "n": 2, "max_tokens": 1}
    with serving(tmp_path / "heddle.toml") as server:
        assert server.status("sk-one", "completions", **two) == 200
        assert server.status("sk-two") == 401
        text = server.text.replace("sk-one", "sk-two").replace("slots = 2", "slots = 3")
        server.keys.write_text("sk-chief\nsk-second")
        text = text.replace("queue = 3", "client_requests = 0\nqueue = 4")
        line = server.hang_up(f"client_requests = 1\nlog_level = 'info'\n{text}")
        assert "read the settings again: changed: api_key, client_requests is 1, " in line
        assert "log_level is 'info'" in line
        assert "models.other.queue is 4" in line
        assert "keys: 3; a restart changes slots" in line
        assert "sk-" not in line
        assert (server.status("sk-one"), server.status("sk-two")) == (401, 200)
        assert (server.status("sk-boss"), server.status("sk-chief")) == (401, 200)
        assert server.status("sk-two", "completions", **two) == 429, "the limit of the server"
        assert server.status("sk-two", "completions", **two | {"model": "other"}) == 200
        assert "/models" in server.line_with(" INFO ")
        line = server.hang_up(server.text)
        assert "api_key, client_requests is 0, log_level is 'warning'" in line
        assert "a restart" not in line, "slots are as they were"
        assert server.status("sk-one", "completions", **two) == 200


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("port = 0", "port ="), "is not a file in TOML"),
        (lambda text: text.replace("port = 0", "queue = -1"), ":1: queue must be at least 0"),
        (lambda text: text.replace("/keys", "/none"), "cannot read"),
    ],
)
def test_a_broken_file_changes_nothing(
    change: Callable[[str], str], said: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "heddle.toml") as server:
        line = server.hang_up(change(server.text.replace("sk-one", "sk-two")))
        assert "ERROR the settings stay as they are: " in line
        assert said in line
        assert (server.status("sk-one"), server.status("sk-two")) == (200, 401)
        assert "changed: api_key; keys" in server.hang_up(server.text.replace("sk-one", "sk-two"))


def test_a_terminal_that_closes_stops_the_server(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with serving(
        tmp_path / "heddle.toml",
        stdin=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as server:
        os.close(slave)
        assert "changed: nothing" in server.hang_up(server.text)
        os.close(master)
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("debug", [False, True])
def test_the_level_of_the_log_changes_unless_debugging_chose_it(debug: bool) -> None:
    own = logging.getLogger("heddle")
    own.setLevel(logging.DEBUG if debug else logging.NOTSET)
    try:
        with logging_to_stderr("debug", "text", verbose=False) as set_level:
            set_level("error")
            assert own.level == (logging.DEBUG if debug else logging.ERROR)
    finally:
        own.setLevel(logging.NOTSET)
