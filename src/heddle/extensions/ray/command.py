"""`heddle deploy`: replicas of the server on a Ray cluster."""

import logging
import signal
import threading
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated

import typer

from heddle.cli.options import MODEL_HELP, with_settings
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.server.http.keys import keys_of
from heddle.server.http.listener import bind, is_loopback
from heddle.server.http.tls import tls_of
from heddle.sizes import counted

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


@with_settings
def deploy(
    models: Models = None,
    *,
    address: Address = "",
    name: Name = "heddle",
    deploy: DeployConfig,
    server: ServerConfig,
    registry: RegistryConfig,
    engine: EngineConfig,
) -> None:
    """Serve models from replicas on many machines, with Ray Serve (extra: heddle[ray])."""
    from heddle.extensions.ray.app import application

    served = tuple(models or [DEFAULT_MODEL])
    deployed = Deployed(served, deploy, engine, registry, server, version("heddle"))
    app = application(deployed)
    _check_network(server)
    if not address:
        server = _on_a_free_port(server)
    import ray

    from heddle.extensions.ray.cluster import check_room, join, leave, listen, run

    try:
        join(address)
        signal.signal(signal.SIGTERM, _interrupt)  # Ray's handler would end this process at once
        check_room(deploy, address)
        place = listen(server)
        print(f"starting  {counted(deploy.replicas, 'replica')} of {', '.join(served)}", flush=True)
        run(app, name, deploy.start_wait)
        print(f"ready     {place}/v1", flush=True)
        if address:
            print(f"stop      serve shutdown, or deploy another application as {name}", flush=True)
        else:
            print("stop      Ctrl-C", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        leave(name, server.drain)
    finally:
        ray.shutdown()  # ends a cluster that this process has started


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
