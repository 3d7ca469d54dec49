"""Builds the Ray Serve application: an ingress in front of replicas."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.extensions.ray.config import DeployConfig, Deployed
from heddle.extensions.ray.groups import placement, with_ranks
from heddle.extensions.ray.questions import PLACES
from heddle.settings import resolve, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve import Application

REPLICAS, INGRESS = "replicas", "ingress"
"""Names of the deployments of the application, as Ray's dashboard shows them."""

_REPORT_EVERY = 1.0
"""Seconds between two reports of a replica to Ray's autoscaler."""

_LEAVING = 3600.0
"""Seconds that an ingress which is replaced keeps its streams: no other can take them over. A
replica may leave after `drain` seconds, because its streams go on at another one."""

_STARTS = 3
"""Most starts of replicas that fail before the deployment fails."""


def app(args: Mapping[str, Any]) -> Application:
    """The application, for `serve run heddle.deploy:app NAME=VALUE ...` and config files of Ray.

    `args` holds settings by name: those of :class:`DeployConfig` and of the servers. `model` names
    the models, separated by commas.

    Raises:
        ConfigError: a name is unknown, a value is wrong, or Ray is not installed.
    """
    texts = {name: str(value) for name, value in args.items()}
    models = tuple(one.strip() for one in texts.pop("model", DEFAULT_MODEL).split(","))
    deploy = _taken(DeployConfig(), texts)
    engine, registry = _taken(EngineConfig(), texts), _taken(RegistryConfig(), texts)
    server = _taken(ServerConfig(), texts)
    if texts:
        raise ConfigError(
            f"{', '.join(map(repr, texts))} is no setting; `heddle deploy --help` lists them",
            param=next(iter(texts)),
        )
    return application(Deployed(models, deploy, engine, registry, server, version("heddle")))


def _taken(config: Any, texts: dict[str, str]) -> Any:
    """A config with its settings among `texts`, which lose them."""
    names = [one.name for one in settings(config) if one.name in texts]
    return resolve(config, {name: texts.pop(name) for name in names})


def application(deployed: Deployed) -> Application:
    """The application of a deployment.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        from ray import serve
    except ImportError:
        raise ConfigError(
            "deployments need Ray; install it with: pip install 'heddle[ray]'"
        ) from None
    from heddle.extensions.ray.ingress import CONNECTIONS, Ingress
    from heddle.extensions.ray.replica import Replica

    deploy, engine, server = deployed.deploy, deployed.engine, deployed.server
    if not engine.threads:
        engine = replace(engine, threads=max(1, int(deploy.cpus)))
        deployed = replace(deployed, engine=engine)
    if deploy.ranks > 1:
        deployed = with_ranks(deployed)
    replicas = serve.deployment(
        Replica,
        name=REPLICAS,
        max_ongoing_requests=engine.slots + engine.queue + PLACES,
        max_queued_requests=deploy.waiting,
        max_constructor_retry_count=_STARTS,
        ray_actor_options={"num_cpus": deploy.cpus, "num_gpus": deploy.gpus},
        graceful_shutdown_timeout_s=server.drain,
        health_check_period_s=deploy.silence,
        health_check_timeout_s=3 * deploy.silence,
        request_router_config={
            "request_router_class": "heddle.extensions.ray.routing.ray_router:HeddleRouter",
            "request_router_kwargs": {"places": PLACES},
            "request_routing_stats_period_s": deploy.publish_seconds,
        },
        **scale(deploy),
        **placement(deploy),
    )
    ingress = serve.deployment(
        Ingress,
        name=INGRESS,
        num_replicas=deploy.ingresses,
        max_ongoing_requests=2 * CONNECTIONS,  # beyond half of them, it refuses all but questions
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=max(_LEAVING, server.drain),
    )
    return ingress.bind(replicas.bind(deployed), deployed)


def scale(deploy: DeployConfig) -> dict[str, Any]:
    """How many replicas there are: a number, or bounds and a policy."""
    if not deploy.most_replicas:
        return {"num_replicas": deploy.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": deploy.replicas,
            # One replica loads the models first. So a deployment that cannot is no success.
            "initial_replicas": None if deploy.replicas else 1,
            "max_replicas": deploy.most_replicas,
            "metrics_interval_s": _REPORT_EVERY,
            "look_back_period_s": 5 * _REPORT_EVERY,
            "upscale_delay_s": deploy.queue_seconds,
            "downscale_delay_s": deploy.shrink_seconds,
            "downscale_to_zero_delay_s": 0.0,  # the policy knows how long replicas are idle
            "policy": {
                "policy_function": "heddle.extensions.ray.scaling:QueueTimePolicy",
                "policy_kwargs": {
                    "queue_seconds": deploy.queue_seconds,
                    "idle_seconds": deploy.idle_seconds,
                },
            },
        }
    }
