"""The common part of tiny models with Mamba-2 mixers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from models.tiny.base import TinyModel

if TYPE_CHECKING:
    from models.tiny.base import Random

_WHOLE_NAMES = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d"}
"""GGUF's names of tensors that do not end in `.weight`."""


def mamba_names(part: str) -> dict[str, str]:
    """GGUF's names of the tensors of a mixer that `transformers` calls `part`."""
    return {
        f"{part}.in_proj": "ssm_in",
        f"{part}.conv1d": "ssm_conv1d",
        f"{part}.norm": "ssm_norm",
        f"{part}.out_proj": "ssm_out",
    }


@dataclass(frozen=True)
class TinyMamba(TinyModel):
    """`transformers` calls the mixer `mamba_part`."""

    mamba_part: ClassVar[str] = "mamba"

    mamba_heads: int = 4
    groups: int = 2
    state_dim: int = 8
    taps: int = 4

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_dim

    def mixer(self, random: Random) -> dict[str, np.ndarray]:
        """The weights of a mixer."""
        heads, width, part = self.mamba_heads, self.width, self.mamba_part
        return {
            f"{part}.in_proj.weight": random.matrix(self.inner + self.channels + heads, width),
            f"{part}.conv1d.weight": random.matrix(self.channels, self.taps)[:, None],
            f"{part}.conv1d.bias": random.normal(self.channels),
            f"{part}.dt_bias": random.near(0.5, heads),
            f"{part}.A_log": random.near(0.5, heads),
            f"{part}.D": random.near(1, heads),
            f"{part}.norm.weight": random.near(1, self.inner),
            f"{part}.out_proj.weight": random.matrix(width, self.inner),
        }

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        prefix = f"{common['general.architecture']}.ssm"
        return common | {
            f"{prefix}.conv_kernel": self.taps,
            f"{prefix}.state_size": self.state_dim,
            f"{prefix}.inner_size": self.inner,
            f"{prefix}.time_step_rank": self.mamba_heads,
            f"{prefix}.group_count": self.groups,
        }

    def gguf_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """Rates of decay in place of logarithms, and vectors as matrices."""
        part = self.mamba_part
        if name.endswith("A_log"):
            return -np.exp(values)[:, None]
        if name.endswith(f"{part}.D"):
            return values[:, None]
        if name.endswith(f"{part}.norm.weight"):
            return values.reshape(self.groups, -1)
        if name.endswith("conv1d.weight"):
            return values[:, 0]
        return super().gguf_values(name, values)

    def gguf_name(self, name: str) -> str:
        for own, stored in _WHOLE_NAMES.items():
            if name.endswith(f"{self.mamba_part}.{own}"):
                return f"blk.{name.split('.')[2]}.{stored}"
        return super().gguf_name(name)
