"""`heddle deploy`: replicas of the server on a Ray cluster."""

import logging
import os
import signal
import socket
import threading
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import MODEL_HELP, with_settings
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError, HeddleError
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.server.http.keys import keys_of
from heddle.server.http.listener import bind, is_loopback
from heddle.server.http.tls import tls_of
from heddle.sizes import counted

AUTH_MODE = "RAY_AUTH_MODE"
"""Variable that says whether Ray shows a token: `token`, `disabled`."""

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODELS", help=MODEL_HELP, show_default=DEFAULT_MODEL),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Join this Ray cluster (auto: the one of this machine) and return when all replicas"
        " are ready.",
        show_default="start a cluster here until Ctrl-C",
    ),
]
Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the application.")]
End = Annotated[
    bool,
    typer.Option(
        "--end",
        help="End the application of the cluster at --address. Its answers have --drain seconds,"
        " and then end with an error.",
    ),
]


@with_settings
def deploy(
    models: Models = None,
    *,
    address: Address = "",
    name: Name = "heddle",
    end: End = False,
    deploy: DeployConfig,
    server: ServerConfig,
    registry: RegistryConfig,
    engine: EngineConfig,
) -> None:
    """Serve models from replicas on many machines, with Ray Serve (extra: heddle[ray])."""
    if end and not address:
        raise ConfigError("--end needs the cluster of the application; set --address", param="end")
    from heddle.extensions.ray.app import application

    if address:
        _show_token(address)
    served = tuple(models or [DEFAULT_MODEL])
    deployed = Deployed(served, deploy, engine, registry, server, version("heddle"))
    app = application(deployed)
    if end:
        _end(address, name, server.drain)
        return
    _check_network(server)
    if not address:
        server = _on_a_free_port(server)
    import ray

    from heddle.extensions.ray.cluster import check_room, is_there, join, leave, listen, run

    is_new = False
    try:
        join(address)
        signal.signal(signal.SIGTERM, _interrupt)  # Ray's handler would end this process at once
        check_room(deploy, address)
        place = listen(server)
        is_new = not is_there(name)
        print(f"starting  {counted(deploy.replicas, 'replica')} of {', '.join(served)}", flush=True)
        run(app, name, deploy.start_wait)
        print(f"ready     {place}/v1", flush=True)
        print(f"stop      {_stop(address, name) if address else 'Ctrl-C'}", flush=True)
        if not address:
            threading.Event().wait()
    except KeyboardInterrupt:
        if is_new:
            leave(name, server.drain)
        elif address:
            print(f"left      only the command ends, and the update of {name} goes on", flush=True)
    finally:
        ray.shutdown()  # ends a cluster that this process has started


def _stop(address: str, name: str) -> str:
    """The command that ends an application of a cluster that goes on."""
    return f"heddle deploy --address {address} --name {name} --end"


def _end(address: str, name: str, drain: float) -> None:
    """End an application of a cluster that goes on.

    Raises:
        ConfigError: there is none of this name, or no cluster.
    """
    import ray

    from heddle.extensions.ray.cluster import is_there, join, leave

    join(address)
    try:
        if not is_there(name):
            raise ConfigError(
                f"--name: the cluster at {address} has no application {name!r}; `serve status`"
                " lists its applications",
                param="name",
            )
        leave(name, drain)
        if is_there(name):
            raise HeddleError(
                f"{name} has answers after {drain:g} s; Ray ends it when they are complete"
            )
    finally:
        ray.shutdown()


def _show_token(address: str) -> None:
    """Let Ray show this machine's token to a cluster on this machine.

    Ray does so itself only for `auto`. It reads the variable when it is imported.
    """
    host = address.removeprefix("ray://").rpartition(":")[0]
    if AUTH_MODE not in os.environ and _has_token() and _is_here(host):
        os.environ[AUTH_MODE] = "token"


def _has_token() -> bool:
    """Whether there is a token where Ray looks for it."""
    if "RAY_AUTH_TOKEN" in os.environ:
        return True
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser().is_file()


def _is_here(host: str) -> bool:
    """Whether a host is this machine: only then can this process listen there."""
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _check_network(server: ServerConfig) -> None:
    """Check what Ray's proxies would find out late, or never say.

    Raises:
        ConfigError: files of TLS or keys cannot be used.
    """
    tls_of(server)
    if keys_of(server).admits_all and not is_loopback(server.host):
        logging.getLogger("heddle").warning(
            "%s is reachable from other machines, and without API keys everyone who reaches it may"
            " use the deployment; set --api-key-file, or --host 127.0.0.1",
            server.host,
        )


def _on_a_free_port(server: ServerConfig) -> ServerConfig:
    """The settings with the port that is free now; 0 means any.

    Raises:
        ConfigError: the port is in use, or the address is not one of this machine.
    """
    with bind(server) as listener:
        return replace(server, port=listener.getsockname()[1])
