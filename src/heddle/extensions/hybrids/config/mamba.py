"""Readers of the keys of config.json that Mamba and FalconMamba have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.hybrids.config.mixers import UNBOUNDED, check_mixer, expanded, step_rank

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def sizes(config: Config) -> Config:
    """The channels and step sizes of the recurrence, which all layers have, and norms.

    `intermediate_size` wins over `expand`, as in `transformers`.

    Raises:
        ModelFileError: a factor is out of range.
        UnsupportedModelError: the recurrence has a form that is not supported.
    """
    check_mixer(config, "hidden_act")
    found: Config = {"context": UNBOUNDED}
    layers = config.get("num_hidden_layers")
    if type(layers) is int:
        found["recurrent_layers"] = [True] * layers
    if config.get("model_type") == "falcon_mamba" and config.get("mixer_rms_eps") is None:
        found["state.norm_eps"] = 1e-6
    channels = config.get("intermediate_size") or expanded(config, "expand")
    return (
        found
        | step_rank(config, "time_step_rank")
        | {"state.inner": channels, "state.heads": channels}
    )
