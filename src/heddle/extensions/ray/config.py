"""What a deployment is: the settings of its servers, and its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    start_wait: float = setting(
        600.0, "scheduling", "most seconds until a replica takes a request", low=1.0
    )
    silence: float = setting(
        10.0, "scheduling", "seconds without a sign of life after which a replica is lost", low=0.5
    )

    def __post_init__(self) -> None:
        """Raises ConfigError if a setting is out of range."""
        validate(self)


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
