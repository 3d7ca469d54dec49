"""Settings of the devices torch and cuda."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heddle.config import EngineSettings
from heddle.errors import ConfigError
from heddle.settings import setting

if TYPE_CHECKING:
    from heddle.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings(EngineSettings):
    """How the devices torch and cuda compute a model."""

    tensor_parallel: int = setting(
        1,
        "devices",
        "processes that compute the model together, each with a part of the weights; on devices"
        " torch and cuda",
        low=1,
        high=64,
        changes_answers=True,
    )
    devices: str = setting(
        "",
        "devices",
        "numbers of the GPUs of --tensor-parallel, separated by commas; empty = the first ones",
    )
    gpu_memory: float = setting(
        0.9,
        "memory",
        "largest part of a GPU's memory in use, other programs included, once weights, KV cache and"
        " buffers are allocated",
        low=0.05,
        high=1.0,
    )
    cuda_graphs: bool = setting(
        True,
        "devices",
        "record decode steps as CUDA graphs at load, which then start in one launch; off = launch"
        " each kernel of each step",
    )

    def check(self, config: EngineConfig) -> None:
        """Check the settings of ranks.

        Raises:
            ConfigError: the device has no ranks, or `devices` does not name one GPU for each rank.
        """
        ranks, (name, colon, _) = self.tensor_parallel, config.device.partition(":")
        numbers = [number.strip() for number in self.devices.split(",")] if self.devices else []
        if ranks > 1 and name not in ("torch", "cuda"):
            raise ConfigError(
                f"tensor_parallel {ranks} does not run on device {config.device!r}; use one of:"
                " torch, cuda",
                param="tensor_parallel",
            )
        if numbers and (name != "cuda" or colon):
            raise ConfigError(
                f"devices {self.devices!r} needs a device whose number is open, such as cuda, not"
                f" {config.device!r}",
                param="devices",
            )
        if colon and ranks > 1:
            raise ConfigError(
                f"device {config.device!r} is one GPU, and tensor_parallel {ranks} needs {ranks};"
                " use device cuda, and name the GPUs in devices",
                param="device",
            )
        wrong = len(numbers) != ranks or len(set(numbers)) != ranks
        if numbers and (wrong or not all(map(str.isdecimal, numbers))):
            raise ConfigError(
                f"devices {self.devices!r} must name {ranks} different GPUs by number, one for each"
                " rank of tensor_parallel, such as 0,1",
                param="devices",
            )

    def for_draft_model(self) -> TorchSettings:
        """The settings of a draft model, which one process computes."""
        return replace(self, tensor_parallel=1, devices="")
