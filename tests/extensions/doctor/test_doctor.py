"""`heddle doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import json
import resource
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from heddle.cli import run
from heddle.config import EngineConfig, ServerConfig
from heddle.cores import Cores
from heddle.errors import ConfigError
from heddle.executor import DeviceMemory
from heddle.extensions.doctor import machine, settings
from heddle.extensions.doctor.findings import Finding, State
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests, and no network."""
    file = tmp_path / "heddle.toml"
    file.write_text("port = 0\noffline = true\n")
    file.chmod(0o600)
    monkeypatch.setenv("HEDDLE_CONFIG", str(file))
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HEDDLE_PORT", "HEDDLE_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def one(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_line_for_each_check_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line[6:19].strip() for line in lines if line[:5].strip()]
    assert checks[:8] == [
        *("settings", "cores", "levels", "memory", "HEDDLE_HOME", "hub cache"),
        *("open files", "locked memory"),
    ]
    assert checks[-2:] == ["address", "network"]
    assert not any(line.startswith("fail") for line in lines)
    (tmp_path / "heddle.toml").write_text("slot = 1")
    assert run(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[0]["state"] == "fail"
    assert ":1: there is no setting 'slot'; the nearest name is slots" in found[0]["said"]
    assert found[0]["advice"]
    assert [one["check"] for one in found][-1] == "network", "the other checks go on"


def test_a_check_that_breaks_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_config: EngineConfig) -> Iterator[Finding]:
        raise ZeroDivisionError("zero")
        yield

    monkeypatch.setattr(machine, "memory", broken)
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fail  memory        the check failed: ZeroDivisionError: zero" in out
    assert "network" in out


@pytest.mark.parametrize(
    ("quota", "threads", "state", "said"),
    [
        (None, 0, State.OK, "2 cores for compute threads (of 4 processors: hyper-threads left"),
        (None, 2, State.OK, "2 cores"),
        (None, 3, State.WARN, "threads is 3, and there are 2 cores"),
        (0.5, 0, State.WARN, "the CPU quota of this container is 0.5 of a processor"),
    ],
)
def test_cores(
    quota: float | None, threads: int, state: State, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Cores((0, 1), 4, ("hyper-threads left out",))
    monkeypatch.setattr(machine, "choose_cores", lambda: chosen)
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    found = one(machine.cores(EngineConfig(threads=threads)))
    assert found.state is state
    assert found.said.startswith(said)
    assert bool(found.advice) == (state is not State.OK)


@pytest.mark.parametrize(
    ("known", "isa", "state"),
    [
        (["avx2", "portable"], "auto", State.OK),
        (["avx2", "portable"], "avx2", State.OK),
        (["portable"], "auto", State.WARN),
        (["avx2", "portable"], "neon", State.FAIL),
    ],
)
def test_levels(known: list[str], isa: str, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine._native, "isa_levels", lambda: known)
    assert one(machine.levels(EngineConfig(isa=isa))).state is state


@pytest.mark.parametrize(
    ("free", "state"), [(8 << 30, State.OK), (1 << 30, State.WARN), (1 << 28, State.FAIL)]
)
def test_memory(free: int, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: free)
    monkeypatch.setattr(machine, "machine_memory", lambda: DeviceMemory(free, 9 << 30))
    found = one(machine.memory(EngineConfig()))
    assert (found.state, "of 9.66 GB" in found.said) == (state, True)


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path / "file" / "in"))
    config = EngineConfig(hub_cache="~no-such-user/x", prefix_cache_dir=str(tmp_path / "new"))
    home, hub, prefixes = machine.disks(config)
    assert (home.check, home.state) == ("HEDDLE_HOME", State.FAIL)
    assert f"make {tmp_path / 'file'} a folder that you may write to" in home.advice
    assert (hub.check, hub.state) == ("hub cache", State.FAIL)
    assert (prefixes.check, prefixes.state) == ("prefix cache", State.OK)
    monkeypatch.setattr(machine, "_LITTLE_DISK", 1 << 60)
    *_, prefixes = machine.disks(config)
    assert prefixes.state is State.WARN


@pytest.mark.parametrize(
    ("files", "state", "said"),
    [
        (20_000, State.OK, "20,000 open files: "),
        (256, State.WARN, "256 open files: 128 connections"),
        (resource.RLIM_INFINITY, State.OK, "any number of open files"),
    ],
)
def test_limits(files: int, state: State, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    opened, locked = machine.limits(EngineConfig())
    assert (opened.state, locked.state) == (state, State.OK)
    assert opened.said.startswith(said)


@pytest.mark.parametrize(
    ("device", "has_gpu", "states"),
    [
        ("cpu", False, {"cpu": State.OK, "torch": State.OK, "cuda": State.OK}),
        ("cpu", True, {"cpu": State.OK, "torch": State.OK, "cuda": State.WARN}),
        ("cuda:1", True, {"torch": State.OK, "cuda": State.FAIL}),
    ],
)
def test_devices(
    device: str,
    has_gpu: bool,
    states: dict[str, State],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def loader(name: str) -> None:
        asked.append(name)
        if name != "cpu":
            raise ConfigError(f"device {name!r} needs torch; install it with pip")

    monkeypatch.setattr(machine, "loader", loader)
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path if has_gpu else tmp_path / "none")
    found = list(machine.gpus(EngineConfig(device=device)))
    assert {one.check.removeprefix("device "): one.state for one in found} == states
    assert device in asked
    assert all(bool(one.advice) == (one.state is not State.OK) for one in found)


def test_settings_that_are_right_are_those_of_the_other_checks(tmp_path: Path) -> None:
    known = settings.Settings()
    assert one(known.read(None)).state is State.OK
    assert (known.server.port, known.engine.offline) == (0, True)
    file = tmp_path / "other.toml"
    file.write_text("api_key = ['sk']\nmodels.a = {source = 'a', device = 'cpu'}")
    file.chmod(0o644)
    exposed = one(known.read(str(file)))
    assert (exposed.state, exposed.advice) == (State.WARN, f"chmod 600 {file}")
    file.write_text("keep_alive = 3")
    assert one(known.read(str(file))).state is State.FAIL


def test_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = one(settings.address(ServerConfig(port=other.getsockname()[1])))
    assert (busy.state, busy.advice) == (State.FAIL, "choose another port with --port")
    assert one(settings.address(ServerConfig(port=0))).state is State.OK
    assert one(settings.address(ServerConfig(port=0, host="0.0.0.0"))).state is State.WARN
    with_key = ServerConfig(port=0, host="0.0.0.0", api_key=("sk",))
    assert one(settings.address(with_key)).state is State.OK
    no_file = ServerConfig(port=0, api_key_file=str(tmp_path / "none"))
    assert one(settings.address(no_file)).state is State.FAIL


class _Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(502 if self.path.startswith("/broken") else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), _Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hub.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert one(settings.network(EngineConfig())) == Finding("network", f"{url} answers")
        monkeypatch.setenv("HF_ENDPOINT", f"{url}/broken")
        refused = one(settings.network(EngineConfig()))
        assert (refused.state, refused.said) == (State.WARN, f"{url}/broken: status 502")
        hub.shutdown()
    offline = one(settings.network(EngineConfig(offline=True)))
    assert offline == Finding("network", "not tried: the settings say offline")


def test_the_network_has_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up of names has no timeout of its own."""
    asked = threading.Event()

    def ask(_endpoint: str, _seconds: float, answers: list[str]) -> None:
        asked.wait(PATIENCE)
        answers.append("")

    monkeypatch.setattr(settings, "_ask", ask)
    found = one(settings.network(EngineConfig(), 0.01))
    asked.set()
    assert (found.state, "no answer within 0.01 s" in found.said) == (State.WARN, True)
