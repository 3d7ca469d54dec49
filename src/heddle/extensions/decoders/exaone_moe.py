"""K-EXAONE: windows with positions and norms of heads as in EXAONE 4, norms as in Llama, experts.

Experts are scored by sigmoids, chosen with a bias, and joined by shared experts.

LG AI Research 2026 (https://huggingface.co/LGAI-EXAONE/K-EXAONE-236B-A23B); `transformers`,
`exaone_moe`; llama.cpp, `conversion/exaone.py` and `exaone-moe.cpp`. Its heads for further tokens
are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.windows import PERIOD, windows_and_positions
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames
from heddle.weights.huggingface.values import by_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward
    from heddle.models.ops import RopeSpec
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")

    def layer(place: tuple[int, RopeSpec | None], mlp: FeedForward) -> Layer:
        window, positions = place
        spec = sizes.attention(read, window)
        return Layer(Attention(shape.width, spec, positions, QueryKeyNorm.HEADS, eps), mlp, eps)

    layers = map(layer, windows_and_positions(read, shape, context), mlps)
    return Decoder(shape, tuple(layers), eps)


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Lists by layer may have entries of prediction heads."""
    layers = values.get("layers")
    if isinstance(values.get("window_period"), list) and isinstance(layers, int):
        values["window_period"] = values["window_period"][:layers]


def _read_config(config: Config) -> Config:
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return {
            "expert_layers": by_kind("mlp_layer_types", kinds, {"sparse": True, "dense": False})
        }
    return {"dense_layers": config.get("first_k_dense_replace", 1)}


FAMILY = Family(
    build=build,
    gguf={"exaone-moe": GGUFNames(read=_read_metadata)},
    hf={
        "exaone_moe": FolderNames(
            layer=SHARED_EXPERTS,
            aliases={"mlp.e_score_correction_bias": "mlp.selection_bias.weight"},
            window_period=PERIOD,
            read=_read_config,
        ),
    },
)
