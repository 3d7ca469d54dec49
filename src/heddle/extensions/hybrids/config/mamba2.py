"""Readers of the keys of config.json that only Mamba-2 has, and values of missing keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.hybrids.config.mixers import UNBOUNDED, check_mixer, product

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def sizes(config: Config) -> dict[str, object]:
    """The width of the recurrence, which all layers have, and a limit of the context.

    Raises:
        UnsupportedModelError: the recurrence has a form that is not supported.
    """
    check_mixer(config, "hidden_act")
    found: dict[str, object] = {"context": UNBOUNDED}
    layers, inner = config.get("num_hidden_layers"), product(config, "num_heads", "head_dim")
    if type(layers) is int:
        found["recurrent_layers"] = [True] * layers
    return found if inner is None else found | {"state.inner": inner}
