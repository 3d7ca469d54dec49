"""The other ranks of a replica: actors of Ray in the replica's placement group.

An actor connects to its replica, shows the secret that the replica has given it, and becomes the
rank's process: it runs the program that a rank of one machine runs. It ends with its connection, so
none outlives its replica.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from heddle.errors import EngineFailedError
from heddle.extensions.processes.children.places import Started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray.actor import ActorHandle

    from heddle.extensions.ray.config import DeployConfig

_SECRET = 32
"""Bytes of a secret."""

_LOOK = 0.5
"""Seconds after which a replica looks again whether an actor has died before it connected."""

_GREETING = 5.0
"""Seconds that a connection may take to show its secret."""

_KILLED = 30.0
"""Seconds that a killed actor may take to end. Ray ends it later, if its machine is lost."""

_UNANSWERED = 20
"""Seconds without an answer of the other machine after which a connection is lost."""


class RankActor:
    """The process of one rank, for Ray."""

    def serve(self, module: str, address: tuple[str, int], secret: bytes) -> None:
        """Run the program of a rank, `main(DESCRIPTOR)` of `module`. The process ends after it."""
        connection = socket.create_connection(address, _GREETING)
        connection.sendall(secret)
        _make_lasting(connection)
        import_module(module).main(connection.detach())
        ray.actor.exit_actor()


class ActorProcess:
    """An actor as the process of a rank; see `heddle.extensions.processes.children.places`."""

    def __init__(self, name: str, actor: ActorHandle, call: Any) -> None:
        """`call`: the result of its `serve`, which comes when it ends."""
        self.name = name
        self.connection: socket.socket | None = None
        self._actor = actor
        self._call = call

    @property
    def where(self) -> str:
        return f"actor {self._actor._actor_id.hex()}"

    def kill(self) -> None:
        if self.connection is not None:
            with suppress(OSError):  # it may be closed
                self.connection.shutdown(socket.SHUT_RDWR)  # so that nobody waits in `send`
        ray.kill(self._actor)

    def ending(self, seconds: float | None = None) -> str | None:
        ended, _ = ray.wait([self._call], timeout=_KILLED if seconds is None else seconds)
        if not ended:
            return None
        try:
            ray.get(self._call)
        except RayError as error:
            return f"ended ({type(error).__name__}); its log may say why"
        return "ended"


class GroupPlace:
    """The machines of a replica's placement group; see `Place`."""

    def __init__(self, deploy: DeployConfig) -> None:
        """Each rank gets the cores and GPUs of its bundle."""
        self.address: str = ray.util.get_node_ip_address()
        self._deploy = deploy

    def start(self, module: str, names: Sequence[str]) -> list[Started]:
        """Start an actor for each name.

        Raises:
            EngineFailedError: one ends, or does not connect within `start_wait` seconds.
        """
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        shown = [secrets.token_bytes(_SECRET) for _ in names]
        actors: list[ActorProcess] = []
        with socket.create_server((self.address, 0), family=family) as listener:
            address = listener.getsockname()[:2]
            try:
                for bundle, (name, secret) in enumerate(zip(names, shown, strict=True), 1):
                    actor = self._actor(bundle)
                    call = actor.serve.remote(module, address, secret)
                    actors.append(ActorProcess(name, actor, call))
                _connect(listener, shown, actors, self._deploy.start_wait)
            except BaseException:
                for one in actors:
                    one.kill()
                raise
        return [Started(one, one.connection) for one in actors if one.connection is not None]

    def _actor(self, bundle: int) -> ActorHandle:
        """A new actor in a bundle of the placement group.

        Raises:
            EngineFailedError: the group has too few bundles.
        """
        if bundle >= self._deploy.ranks:
            raise EngineFailedError(
                f"the replica has {self._deploy.ranks} ranks, and the model needs more; set"
                " tensor_parallel and ranks to the same number"
            )
        kind = ray.remote(RankActor).options(
            num_cpus=self._deploy.cpus,
            num_gpus=self._deploy.gpus,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                get_current_placement_group(), placement_group_bundle_index=bundle
            ),
        )
        return kind.remote()


def _connect(
    listener: socket.socket,
    shown: Sequence[bytes],
    actors: Sequence[ActorProcess],
    seconds: float,
) -> None:
    """Wait until each actor has connected. A connection without a secret is closed.

    Raises:
        EngineFailedError: an actor has ended, or there is none within `seconds`.
    """
    deadline = time.monotonic() + seconds
    listener.settimeout(_LOOK)
    while missing := [one for one in actors if one.connection is None]:
        for one in missing:
            if (how := one.ending(0.0)) is not None:
                raise EngineFailedError(f"{one.name} ({one.where}) {how}")
        if time.monotonic() > deadline:
            raise EngineFailedError(
                f"{missing[0].name} ({missing[0].where}) did not connect within {seconds:g} s."
                " Look at `ray status` and at the network between the machines, or raise"
                " start_wait"
            )
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        given = _secret_of(connection)
        for one, secret in zip(actors, shown, strict=True):
            if one.connection is None and hmac.compare_digest(given, secret):
                _make_lasting(connection)
                one.connection = connection
                break
        else:
            connection.close()


def _secret_of(connection: socket.socket) -> bytes:
    """What a new connection shows; less than a secret if it ends, or is too slow."""
    given, deadline = b"", time.monotonic() + _GREETING
    try:
        while len(given) < _SECRET:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(_SECRET - len(given))
            if not part:
                break
            given += part
    except OSError:
        pass
    return given


def _make_lasting(connection: socket.socket) -> None:
    """Let a connection send small messages at once, and notice a machine that is lost."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED)
