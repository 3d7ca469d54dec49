"""The constants of the clamped activation, which GPT-OSS and MiniMax M3 have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


_CLAMPED = {"expert_limit": 7.0, "expert_slope": 1.702}
"""The constants of the clamped activation; see :meth:`heddle.models.ops.Ops.gated`."""


def check_clamped(hyperparameters: Hyperparameters) -> None:
    """Check the constants of a model with the clamped activation.

    Raises:
        UnsupportedModelError: they are not those of the published models.
    """
    read = hyperparameters
    for name, constant in _CLAMPED.items():
        if read.number(name, constant) != constant:
            label = read.label(name)
            raise UnsupportedModelError(
                f"{label} {read.number(name):g} is not supported; supported: {constant:g}",
                param=label,
            )
