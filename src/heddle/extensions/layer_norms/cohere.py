"""Command R, Aya and Command A: layer norms without biases, parts of a layer beside each other.

In Cohere 2 (Command R7B, Command A), three of four layers attend to a window, and only these have
positions.

Cohere 2024 (https://huggingface.co/CohereLabs); Command A: Cohere 2025 (arXiv:2504.00698).
"""

from __future__ import annotations

from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.windows import PERIOD, windows_and_positions
from heddle.extensions.layer_norms.stablelm import refuse_norms
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.ops import RopeSpec
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. Without a window it is Command R of 2024."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))

    def layer(window: int, positions: RopeSpec | None) -> Layer:
        attention = Attention(shape.width, sizes.attention(read, window), positions)
        return Layer(attention, mlp, eps, centred=True, parallel=True)

    return Decoder(
        shape,
        tuple(starmap(layer, windows_and_positions(read, shape, context))),
        eps,
        logit_scale=1 / read.number("logit_divisor", 1.0),
    )


def _divisor(scale: object) -> object:
    """The divisor of logits for a factor; the factor itself if it makes no sense.

    Then the error names it.
    """
    return 1 / scale if isinstance(scale, float) and scale > 0 else scale


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    if "logit_scale" in metadata:
        values["logit_divisor"] = _divisor(metadata["logit_scale"])


def _read_config(config: Config, default: float) -> Config:
    refuse_norms(config, "use_qk_norm")
    return {"logit_divisor": _divisor(config.get("logit_scale", default))}


_GGUF = GGUFNames(
    hyperparameters={"norm_eps": "attention.layer_norm_epsilon"},
    values=INTERLEAVED,
    read=_read_metadata,
)


def _folder(default_scale: float, period: int | None = None) -> FolderNames:
    return FolderNames(
        hyperparameters={"norm_eps": "layer_norm_eps"},
        values=INTERLEAVED,
        window_period=period,
        read=partial(_read_config, default=default_scale),
    )


FAMILY = Family(
    build=build,
    gguf={"command-r": _GGUF, "cohere2": _GGUF},
    hf={"cohere": _folder(0.0625), "cohere2": _folder(0.0625, PERIOD)},
)
