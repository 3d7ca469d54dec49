"""Child processes that serve, end too early, or print nothing."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from heddle.config import EngineConfig
from heddle.errors import PeerError
from heddle.extensions.bench import servers
from heddle.extensions.bench.servers import heddle_server, running

SERVING = "import os, sys; print('hello'); print('ready ', os.environ['PLACE'], flush=True); "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_that_serves_is_ended_at_last() -> None:
    wait = python(SERVING + "sys.stdin.read()")
    with running("child", wait, {"PLACE": "http://there/v1"}) as (pid, url):
        assert url == "http://there/v1"
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_does_not_start_is_named_with_its_last_words() -> None:
    dying = python("import sys; sys.exit('no such model')")
    with (
        pytest.raises(PeerError, match="child did not start: no such model"),
        running("child", dying),
    ):
        pass


def test_a_child_that_never_speaks_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "START_SECONDS", 0.05)
    silent = python("import sys; sys.stdin.read()")
    with pytest.raises(PeerError, match="child did not start"), running("child", silent):
        pass


def test_nothing_waits_for_a_child_that_was_given_up() -> None:
    """As after Ctrl-C: the program would not end before the child's time was over."""
    garbled = python("import sys; sys.stdout.buffer.write(bytes([255, 10])); sys.stdout.flush()")
    with pytest.raises(UnicodeDecodeError), running("child", garbled):
        pass
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(one.finished.is_set() for one in timers)


def test_a_child_that_will_not_go_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_STOP_SECONDS", 0.05)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVING
    stubborn = python(code + "signal.pause()")
    with running("child", stubborn, {"PLACE": "here"}) as (pid, _):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_heddle_to_be_measured_heeds_no_settings_of_the_users_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}

    def starting(name: str, command: list[str], variables: dict[str, str]) -> None:
        seen.update(variables)
        raise PeerError("enough")

    monkeypatch.setattr(servers, "running", starting)
    with pytest.raises(PeerError), heddle_server("some.gguf", EngineConfig(slots=3)):
        pass
    assert (seen["HEDDLE_API_KEY"], seen["HEDDLE_HOST"]) == ("", "")
    assert seen["HEDDLE_SLOTS"] == "3"
