"""Starts or joins a cluster, and deploys an application on it. Needs Ray."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig

from heddle.errors import ConfigError, HeddleError
from heddle.settings import debug_wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray.serve import Application
    from ray.serve.schema import ApplicationStatusOverview

    from heddle.config import ServerConfig
    from heddle.extensions.ray.config import DeployConfig

_log = logging.getLogger(__name__)

_NO_REASON = "Ray gives no reason"

_LOOK_EVERY = 0.2
"""Seconds between two looks at a deployment that starts."""

_REACH_SECONDS = 5.0
"""Longest time until a cluster takes a connection."""

_JOIN_SECONDS = 60.0
"""Longest time until a cluster has taken this process. Ray itself tries for twelve minutes."""

_ENDING_SECONDS = 10.0
"""Longest time after the drain in which an ingress tells its clients that their answers end."""

_LAST_PORT = 65_535

QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Ray Serve logs each request and each change of a replica otherwise."""


def join(address: str) -> None:
    """Join the cluster at an address; without one, start a cluster.

    Raises:
        ConfigError: there is no cluster, it wants another token, or it has another version of Ray
            or Python.
    """
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    def begin() -> None:
        ray.init(logging_level="ERROR", log_to_driver=debug_wanted(), **options)

    try:
        if address:
            _reach(address)
            _within(_JOIN_SECONDS, begin)
        else:
            begin()  # in this thread: what a thread starts, Linux ends together with the thread
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if not address:
            raise HeddleError(f"Ray cannot start a cluster here: {reason}") from None
        raise ConfigError(
            f"--address: no Ray cluster can be joined at {address!r}: {reason}. Start one with"
            " `ray start --head`, or leave --address out. If the cluster has a token, set"
            " RAY_AUTH_MODE=token and put the token in ~/.ray/auth_token or RAY_AUTH_TOKEN",
            param="address",
        ) from None


def _reach(address: str) -> None:
    """Connect once. Ray would try for minutes.

    Raises:
        OSError: nothing listens there.
        ValueError: the address has no port, and is none of Ray's words.
    """
    place = address.removeprefix("ray://")
    if place in ("auto", "local"):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
    socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call in a thread, which stays behind if the call takes too long.

    Raises:
        TimeoutError: the call takes longer.
        Exception: those of `call`.
    """
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # the caller gets it
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        done.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"nothing has answered for {seconds:g} s") from None


def check_room(deploy: DeployConfig, address: str) -> None:
    """Check that a cluster of this machine alone has room. Others may grow.

    Raises:
        ConfigError: it has too few cores or GPUs.
    """
    if address:
        return
    here = ray.cluster_resources()
    for option, kind, each in (("cpus", "CPU", deploy.cpus), ("gpus", "GPU", deploy.gpus)):
        needed, there = deploy.replicas * deploy.ranks * each, here.get(kind, 0.0)
        if needed > there:
            raise ConfigError(
                f"{deploy.replicas} replicas with --{option} {each:g} need {needed:g} {kind}s, and"
                f" this machine has {there:g}. Lower --replicas or --{option}, or join a larger"
                " cluster with --address",
                param="replicas",
            )


def listen(server: ServerConfig) -> str:
    """Let the cluster's proxies listen; returns their URL, with the host of the settings.

    Raises:
        ConfigError: they listen on another port already.
    """
    tls = {"ssl_certfile": server.tls_cert, "ssl_keyfile": server.tls_key}
    options = {"host": server.host, "port": server.port}
    options |= tls if server.tls_cert else {}
    try:
        serve.start(http_options=options, logging_config=QUIET)
    except (RayServeException, RuntimeError, ray.exceptions.RayError) as error:
        raise HeddleError(f"Ray Serve cannot start: {_line(str(error))}") from None
    there = _get_global_client().http_config  # nothing public tells it without Ray's dashboard
    if (there.host, there.port) != (server.host, server.port):
        raise ConfigError(
            f"Ray Serve listens on {there.host} port {there.port} of this cluster already. Deploy"
            f" with --host {there.host} --port {there.port}, or end it with `serve shutdown`",
            param="port",
        )
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{'https' if server.tls_cert else 'http'}://{host}:{server.port}"


def run(app: Application, name: str, seconds: float) -> None:
    """Deploy an application, and wait at most `seconds` until all its replicas are ready.

    Raises:
        HeddleError: a replica cannot start, or starts too slowly.
    """
    target = serve.RunTarget(app, name=name, logging_config=QUIET)
    try:
        serve.run_many([target], wait_for_applications_running=False)
    except (RayServeException, RuntimeError, ValueError) as error:
        raise HeddleError(f"the deployment failed: {_line(str(error))}") from None
    deadline, said = time.monotonic() + seconds, ""
    while True:
        state = serve.status().applications.get(name)
        why = _reasons(state) if state is not None else ""
        if state is not None and state.status == ApplicationStatus.RUNNING:
            return
        if state is not None and state.status == ApplicationStatus.DEPLOY_FAILED:
            raise HeddleError(f"the deployment failed: {why or _NO_REASON}")
        if why not in ("", said):  # Ray goes on trying, if another replica has started
            said = why
            _log.warning("not ready yet: %s", why)
        if time.monotonic() > deadline:
            why = why or _NO_REASON
            raise HeddleError(
                f"the deployment was not ready after {seconds:g} s: {why}. Raise --start-wait, or"
                " give the cluster more room"
            )
        time.sleep(_LOOK_EVERY)


def is_there(name: str) -> bool:
    """Whether the cluster has an application of this name."""
    return name in serve.status().applications


def leave(name: str, drain: float) -> None:
    """Delete an application. Its answers have `drain` seconds, and then end with an error."""
    serve.delete(name, _blocking=False)  # which would wait for 60 s at most, and raise
    end = time.monotonic() + drain + _ENDING_SECONDS
    while is_there(name) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)


def _reasons(state: ApplicationStatusOverview) -> str:
    """What Ray says about the deployments that are not ready, each in a line; may be empty."""
    said = [
        f"{name}: {_line(one.message)}" for name, one in state.deployments.items() if one.message
    ]
    return "; ".join(said) or _line(state.message)


def _line(message: str) -> str:
    """The last line of a message: in a traceback, it names the error."""
    lines = message.strip().splitlines()
    return lines[-1].strip() if lines else ""
