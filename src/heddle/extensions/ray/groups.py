"""A replica that is a group: the settings of its ranks, and where Ray places them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError
from heddle.extensions.torch.settings import TorchSettings

if TYPE_CHECKING:
    from heddle.extensions.ray.config import DeployConfig, Deployed


def with_ranks(deployed: Deployed) -> Deployed:
    """The deployment whose model `ranks` processes compute.

    Raises:
        ConfigError: another setting does not fit.
    """
    ranks, own = deployed.deploy.ranks, deployed.engine.of(TorchSettings)
    if own.tensor_parallel not in (1, ranks):
        raise ConfigError(
            f"ranks {ranks} and tensor_parallel {own.tensor_parallel} differ; leave tensor_parallel"
            " out",
            param="ranks",
        )
    if own.devices:
        raise ConfigError(
            f"devices {own.devices!r} names GPUs of one machine, and Ray chooses those of ranks"
            f" {ranks}; leave devices out",
            param="devices",
        )
    if len(deployed.models) > 1:
        raise ConfigError(
            f"ranks {ranks} compute one model, not {len(deployed.models)}; make a deployment for"
            " each model",
            param="ranks",
        )
    engine = deployed.engine.having(replace(own, tensor_parallel=ranks))
    engine.check()
    return replace(deployed, engine=engine)


def placement(deploy: DeployConfig) -> dict[str, Any]:
    """The placement group of a replica: a bundle for each rank, on as few machines as hold them."""
    if deploy.ranks == 1:
        return {}
    bundle = {"CPU": deploy.cpus, "GPU": deploy.gpus}
    bundles = [{name: count for name, count in bundle.items() if count}] * deploy.ranks
    return {"placement_group_bundles": bundles, "placement_group_strategy": "PACK"}
