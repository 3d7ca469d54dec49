"""`heddle deploy`: replicas of the server on a Ray cluster."""

import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.options import MODEL_HELP, with_settings
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError, HeddleError
from heddle.extensions.ray.config import DeployConfig, Deployed

if TYPE_CHECKING:
    from ray.serve import Application

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
    app = application(Deployed(served, deploy, engine, registry, server, version("heddle")))
    import ray
    from ray import serve

    _join(address)
    try:
        serve.start(http_options={"host": server.host, "port": server.port})
        _run(app, name)
        print(f"ready     http://{server.host}:{server.port}/v1", flush=True)
        if address:
            print(f"stop      serve shutdown, or deploy another application as {name}")
        else:
            threading.Event().wait()
    except KeyboardInterrupt:
        serve.delete(name)
    finally:
        if not address:
            serve.shutdown()
        ray.shutdown()


def _join(address: str) -> None:
    """Join the cluster at an address; without one, start a cluster.

    Raises:
        ConfigError: there is no cluster.
    """
    import ray

    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(logging_level="WARNING", log_to_driver=not address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--address: there is no Ray cluster at {address!r}: {reason}. Start one with"
            " `ray start --head`, or leave --address out",
            param="address",
        ) from None


def _run(app: "Application", name: str) -> None:
    """Deploy an application, and wait until all its replicas are ready.

    Raises:
        HeddleError: a replica cannot start.
    """
    from ray import serve

    try:
        serve.run(app, name=name)
    except RuntimeError:
        status = serve.status().applications.get(name)
        deployments = status.deployments.items() if status is not None else ()
        said = [
            f"{which}: {one.message.strip().splitlines()[-1]}"
            for which, one in deployments
            if one.message
        ]
        reasons = "; ".join(said) or "Ray gives no reason"
        raise HeddleError(f"the deployment failed: {reasons}") from None
