"""Readers of the keys of config.json that only Jamba has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.extensions.hybrids.config.mixers import check_mixer, expanded, step_rank

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def sizes(config: Config) -> Config:
    """The layers with attention, and the channels and step sizes of the others.

    Raises:
        ModelFileError: a period or a factor is out of range.
        UnsupportedModelError: the recurrence has a form that is not supported.
    """
    check_mixer(config, "hidden_act")
    channels = expanded(config, "mamba_expand")
    found: Config = {"state.inner": channels, "state.heads": channels}
    layers, offset = config.get("num_hidden_layers"), config.get("attn_layer_offset", 4)
    period = config.get("attn_layer_period", 8)
    if type(period) is not int or period < 1:
        raise ModelFileError(
            f"attn_layer_period must be a positive whole number, got {period!r}",
            field="attn_layer_period",
        )
    if type(layers) is int:
        found["recurrent_layers"] = [layer % period != offset for layer in range(layers)]
    return found | step_rank(config, "mamba_dt_rank")
