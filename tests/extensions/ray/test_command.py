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

from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError, HeddleError
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


class Serve:
    """Ray Serve with an application in one state."""

    def __init__(self, status: str, **messages: str) -> None:
        deployments = {name: SimpleNamespace(message=one) for name, one in messages.items()}
        state = SimpleNamespace(status=status, message="", deployments=deployments)
        self._applications = {"heddle": state}

    def RunTarget(self, *_: Any, **__: Any) -> None:  # noqa: N802  as Ray calls it
        pass

    def run_many(self, *_: Any, **__: Any) -> None:
        pass

    def status(self) -> Any:
        return SimpleNamespace(applications=self._applications)


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


def test_versions_that_differ() -> None:
    pytest.importorskip("ray")
    server, engine = ServerConfig(), EngineConfig()
    deployed = Deployed(("m",), DeployConfig(), engine, RegistryConfig(), server, "0.0")
    with pytest.raises(ConfigError, match=r"made with 0\.0\. Install the same version"):
        Replica(deployed)
