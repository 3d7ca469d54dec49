"""What a deployment is: the settings of its servers, and its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.settings import setting, validate

if TYPE_CHECKING:
    from heddle.config import EngineConfig, RegistryConfig, ServerConfig

_MOST = 10_000
"""Most replicas."""


@dataclass(frozen=True)
class DeployConfig:
    """Settings of a deployment, beside those of its servers."""

    replicas: int = setting(
        2, "devices", "number of replicas; with --most-replicas, the fewest", low=0, high=_MOST
    )
    most_replicas: int = setting(
        0,
        "devices",
        "most replicas, as load needs them; 0: always --replicas",
        low=0,
        high=_MOST,
    )
    queue_seconds: float = setting(
        2.0,
        "scheduling",
        "seconds that requests may be expected to wait for a slot; beyond, more replicas start",
        low=0.1,
        high=3600.0,
    )
    shrink_seconds: float = setting(
        60.0,
        "scheduling",
        "seconds for which one replica fewer must be enough before one stops",
        low=0.0,
        high=86_400.0,
    )
    idle_seconds: float = setting(
        300.0,
        "scheduling",
        "seconds without requests until the last replica stops, with --replicas 0",
        low=1.0,
        high=86_400.0,
    )
    cpus: float = setting(
        1.0, "devices", "cores that Ray reserves for each replica, and its threads", low=0.01
    )
    gpus: float = setting(0.0, "devices", "GPUs that Ray reserves for each replica", low=0.0)
    ranks: int = setting(
        1,
        "devices",
        "processes that compute the model of a replica together, on one machine or on several, each"
        " with --cpus and --gpus of its own; on devices torch and cuda",
        low=1,
        high=64,
    )
    ingresses: int = setting(1, "devices", "processes that keep clients' connections", low=1)
    waiting: int = setting(
        1000, "scheduling", "most requests that wait at an ingress for a replica", low=0
    )
    bodies: int = setting(
        1 << 30,
        "network",
        "most bytes of bodies in an ingress, each until its answer is complete; above, 429",
        low=1 << 20,
        size=True,
    )
    publish_seconds: float = setting(
        1.0,
        "scheduling",
        "seconds between reports of a replica to the router; 10 with 1,000 replicas",
        low=0.1,
        high=60.0,
    )
    start_wait: float = setting(
        600.0, "scheduling", "most seconds until a replica takes a request", low=1.0
    )
    silence: float = setting(
        10.0, "scheduling", "seconds without a sign of life after which a replica is lost", low=0.5
    )

    def __post_init__(self) -> None:
        """Raises ConfigError if a setting is out of range, or settings do not fit together."""
        validate(self)
        if not self.replicas and not self.most_replicas:
            raise ConfigError(
                "replicas is 0, and most_replicas is not set. Set most_replicas to the number of"
                " replicas that requests may start",
                param="most_replicas",
            )
        if 0 < self.most_replicas < self.replicas:
            raise ConfigError(
                f"most_replicas is {self.most_replicas}, and replicas, the fewest, is"
                f" {self.replicas}. Raise most_replicas, or lower replicas",
                param="most_replicas",
            )
        if not self.replicas and not self.waiting:
            raise ConfigError(
                "waiting is 0, and replicas is 0: the request that starts a replica waits for it."
                " Raise waiting, or replicas",
                param="waiting",
            )


@dataclass(frozen=True, slots=True)
class Deployed:
    """What the processes of a deployment have in common.

    Attributes:
        models: names of the models that each replica loads, the default first.
        version: of Heddle, where the deployment was made.
    """

    models: tuple[str, ...]
    deploy: DeployConfig
    engine: EngineConfig
    registry: RegistryConfig
    server: ServerConfig
    version: str
