"""What `heddle deploy` says when it cannot deploy."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.cli import run
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError, HeddleError
from heddle.extensions.ray import command
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.extensions.ray.replica import Replica
from patience import PATIENCE

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from heddle.cli import run
sys.exit(run(sys.argv[1:]))
"""


def refused(*arguments: str, code: str = "") -> str:
    """What the command says when it fails, in one line."""
    python = [sys.executable, *(("-c", code) if code else ("-m", "heddle"))]
    done = subprocess.run(
        [*python, "deploy", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.fixture
def cluster() -> Any:
    pytest.importorskip("ray")
    with warnings.catch_warnings():  # of pydantic, about Ray Serve
        warnings.simplefilter("ignore")
        from heddle.extensions.ray import cluster
    return cluster


def test_without_ray() -> None:
    assert refused(code=WITHOUT_RAY).endswith("install it with: pip install 'heddle[ray]'")


def test_a_port_in_use(cluster: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", str(port))
    assert said == f"heddle: 127.0.0.1 port {port} is in use; choose another port with --port"


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("nowhere", "an address is HOST:PORT")],
)
def test_no_cluster(cluster: Any, address: str, reason: str) -> None:
    said = refused("--address", address)
    assert said.startswith(f"heddle: --address: no Ray cluster can be joined at '{address}'")
    assert reason in said
    assert "Start one with `ray start --head`" in said


def test_a_cluster_that_does_not_answer(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    monkeypatch.setattr(cluster, "_JOIN_SECONDS", 0.01)
    monkeypatch.setattr(cluster.ray, "init", lambda **_: held.wait(PATIENCE))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(ConfigError, match=r"nothing has answered for 0\.01 s"):
            cluster.join(f"127.0.0.1:{mute.getsockname()[1]}")
        held.set()


def test_a_machine_that_is_too_small(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"CPU": 2.0})
    cluster.check_room(DeployConfig(replicas=4, cpus=0.5), "")
    cluster.check_room(DeployConfig(replicas=4), "10.0.0.1:6379")  # it may grow
    with pytest.raises(ConfigError, match="4 replicas with --cpus 1 need 4 CPUs, and"):
        cluster.check_room(DeployConfig(replicas=4), "")
    with pytest.raises(ConfigError, match="need 2 GPUs, and this machine has 0"):
        cluster.check_room(DeployConfig(replicas=2, gpus=1), "")


@pytest.mark.parametrize(
    ("address", "variables", "mode"),
    [
        ("auto", {"RAY_AUTH_TOKEN": "5"}, "token"),
        ("127.0.0.1:6379", {"RAY_AUTH_TOKEN": "5"}, "token"),
        ("ray://localhost:10001", {"RAY_AUTH_TOKEN_PATH": __file__}, "token"),
        ("203.0.113.7:6379", {"RAY_AUTH_TOKEN": "5"}, None),  # a token is for its own cluster
        ("127.0.0.1:6379", {"RAY_AUTH_TOKEN_PATH": "/none"}, None),
        ("127.0.0.1:6379", {"RAY_AUTH_TOKEN": "5", "RAY_AUTH_MODE": "disabled"}, "disabled"),
    ],
)
def test_a_cluster_here_gets_the_token(
    monkeypatch: pytest.MonkeyPatch, address: str, variables: dict[str, str], mode: str | None
) -> None:
    environment = dict(variables)
    monkeypatch.setattr(command.os, "environ", environment)
    command._show_token(address)
    assert environment.get("RAY_AUTH_MODE") == mode


def test_a_cluster_that_wants_a_token(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise cluster.ray.exceptions.AuthenticationError("no token was found")

    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(ConfigError, match=r"no token was found.*set RAY_AUTH_MODE=token and put"):
        cluster.join("auto")


def test_an_end_without_a_cluster() -> None:
    assert refused("--end") == "heddle: --end needs the cluster of the application; set --address"


@pytest.fixture
def joined(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The applications that are deleted on a cluster with `heddle`, to which deploying waits."""
    deleted: list[str] = []

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "_show_token", lambda _: None)  # it changes this process
    monkeypatch.setattr(cluster, "join", lambda _: None)
    monkeypatch.setattr(cluster, "listen", lambda _: "http://there")
    monkeypatch.setattr(cluster, "run", interrupted)
    monkeypatch.setattr(cluster, "is_there", lambda name: name == "heddle" not in deleted)
    monkeypatch.setattr(cluster, "leave", lambda name, _: deleted.append(name))
    return deleted


def test_an_interrupted_update_goes_on(joined: list[str]) -> None:
    assert run(["deploy", "--address", "auto"]) == 0
    assert run(["deploy", "--address", "auto", "--name", "other"]) == 0
    assert joined == ["other"]


def test_an_end(joined: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", "--address", "auto", "--name", "other", "--end"]) == 2
    assert "the cluster at auto has no application 'other'" in capsys.readouterr().err
    assert run(["deploy", "--address", "auto", "--end"]) == 0
    assert joined == ["heddle"]


class Serve:
    """Ray Serve with an application in one state, after others."""

    def __init__(self, status: str, *before: str, **messages: str) -> None:
        deployments = {name: SimpleNamespace(message=one) for name, one in messages.items()}
        self._states = [
            SimpleNamespace(status=one, message="", deployments=deployments)
            for one in (*before, status)
        ]

    def RunTarget(self, *_: Any, **__: Any) -> None:  # noqa: N802  as Ray calls it
        pass

    def run_many(self, *_: Any, **__: Any) -> None:
        pass

    def delete(self, *_: Any, **__: Any) -> None:
        pass

    def status(self) -> Any:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return SimpleNamespace(applications={"heddle": state})


TRACEBACK = "Traceback (most recent call last):\n  File x\nheddle.errors.ModelSourceError: no model"


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (Serve("DEPLOY_FAILED", replicas=TRACEBACK), "replicas: heddle.errors.ModelSourceError"),
        (Serve("DEPLOY_FAILED"), "failed: Ray gives no reason"),
        (Serve("DEPLOYING", replicas="1 waits"), r"ready after 0\.01 s: replicas: 1 waits. Raise"),
    ],
)
def test_a_deployment_that_fails(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, serve: Serve, reason: str
) -> None:
    monkeypatch.setattr(cluster, "serve", serve)
    with pytest.raises(HeddleError, match=reason):
        cluster.run(None, "heddle", 0.01)


def test_a_deployment_that_runs(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "serve", Serve("RUNNING"))
    cluster.run(None, "heddle", PATIENCE)


def test_a_reason_is_said_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(cluster, "serve", Serve("RUNNING", *["DEPLOYING"] * 3, replicas=TRACEBACK))
    cluster.run(None, "heddle", PATIENCE)
    expected = "not ready yet: replicas: heddle.errors.ModelSourceError: no model"
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_answers_that_do_not_end_hold_nobody(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        assert now[0] < 5.0 + cluster._ENDING_SECONDS
        now[0] += seconds

    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(cluster, "serve", Serve("DELETING"))
    cluster.leave("heddle", 5.0)


def test_versions_that_differ() -> None:
    pytest.importorskip("ray")
    server, engine = ServerConfig(), EngineConfig()
    deployed = Deployed(("m",), DeployConfig(), engine, RegistryConfig(), server, "0.0")
    with pytest.raises(ConfigError, match=r"made with 0\.0\. Install the same version"):
        Replica(deployed)
