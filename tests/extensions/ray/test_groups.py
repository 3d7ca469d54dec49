"""A replica that is a group: its settings, and how its ranks connect."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from configs import configured
from heddle.config import RegistryConfig, ServerConfig
from heddle.errors import ConfigError, EngineFailedError
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.extensions.ray.groups import placement, with_ranks
from heddle.extensions.torch.settings import TorchSettings
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


def deployed(ranks: int, models: tuple[str, ...] = ("m",), **engine: Any) -> Deployed:
    deploy = DeployConfig(ranks=ranks)
    return Deployed(models, deploy, configured(**engine), RegistryConfig(), ServerConfig(), "1")


def test_ranks_compute_the_model_of_a_replica() -> None:
    for given in ({}, {"tensor_parallel": 2}):
        found = with_ranks(deployed(2, device="torch", **given)).engine
        assert found.of(TorchSettings).tensor_parallel == 2


@pytest.mark.parametrize(
    ("engine", "models", "param"),
    [
        ({"device": "torch", "tensor_parallel": 4}, ("m",), "ranks"),
        ({"device": "cuda", "devices": "0,1"}, ("m",), "devices"),
        ({"device": "torch"}, ("m", "n"), "ranks"),
        ({"device": "cpu"}, ("m",), "tensor_parallel"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    engine: dict[str, Any], models: tuple[str, ...], param: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        with_ranks(deployed(2, models, **engine))
    assert refusal.value.param == param


def test_each_rank_has_a_bundle() -> None:
    assert placement(DeployConfig()) == {}
    found = placement(DeployConfig(ranks=2, cpus=3, gpus=1))
    assert found["placement_group_bundles"] == [{"CPU": 3, "GPU": 1}] * 2
    assert placement(DeployConfig(ranks=3))["placement_group_bundles"] == [{"CPU": 1}] * 3


class Actor:
    """Stands for an actor, which has ended when `_connect` has looked so many times."""

    def __init__(self, name: str, looks: int = 40) -> None:
        self.name = name
        self.where = f"actor {name}"
        self.connection: socket.socket | None = None
        self.looks = looks

    def ending(self, seconds: float | None = None) -> str | None:
        self.looks -= 1
        return None if self.looks >= 0 else "ended (ActorDiedError)"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_each_actor_has_the_connection_that_showed_its_secret(listener: socket.socket) -> None:
    from heddle.extensions.ray.gang import _connect

    actors, secrets = [Actor("rank 1"), Actor("rank 2")], [b"a" * 32, b"b" * 32]
    ends = [socket.create_connection(listener.getsockname()) for _ in range(4)]
    for end in ends:
        end.settimeout(PATIENCE)
    ends[0].sendall(b"x" * 32)  # a stranger
    ends[1].close()
    ends[2].sendall(secrets[1])
    ends[3].sendall(secrets[0])
    _connect(listener, secrets, actors, PATIENCE)  # type: ignore[arg-type]
    for end, actor in zip(ends[:1:-1], actors, strict=True):
        assert actor.connection is not None
        assert actor.connection.gettimeout() is None
        actor.connection.sendall(actor.name.encode())
        assert end.recv(6) == actor.name.encode()
        actor.connection.close()
        end.close()
    assert ends[0].recv(1) == b"", "it is closed"
    ends[0].close()


def test_an_actor_that_ends_before_it_connects_is_named(listener: socket.socket) -> None:
    from heddle.extensions.ray.gang import _connect

    actor = Actor("rank 1", looks=1)
    with pytest.raises(EngineFailedError, match=r"rank 1 \(actor rank 1\) ended \(ActorDied"):
        _connect(listener, [b"a" * 32], [actor], PATIENCE)  # type: ignore[list-item]


def test_an_actor_that_does_not_connect_is_not_waited_for(listener: socket.socket) -> None:
    from heddle.extensions.ray.gang import _connect

    with pytest.raises(EngineFailedError, match=r"did not connect within 0\.01 s\. Look at"):
        _connect(listener, [b"a" * 32], [Actor("rank 1")], 0.01)  # type: ignore[list-item]
