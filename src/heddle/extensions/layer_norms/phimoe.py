"""PhiMoE: Phi-3.5-MoE, Phi-mini-MoE and Phi-tiny-MoE: layer norms, biases, two experts a token.

Sparsemixer chooses the experts (see :class:`heddle.models.ops.ExpertSpec`). `transformers`,
`phimoe`; llama.cpp, `conversion/phi.py`. llama.cpp computes RMS norms and a softmax over the two
experts in place of the model's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedModelError
from heddle.extensions.layer_norms.activations import require
from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.families.llama import MIXTRAL_EXPERTS
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_FACTOR_OF_3_5 = 1.243163121016122
"""Factor on queries and keys in Phi-3.5-MoE. GGUF files have that of Phi-3 in its place."""
_LONG, _ORIGINAL = 131_072, 4096
"""Its contexts, before and after longrope."""
_JITTER = 0.01
"""Half the distance of experts that are near each other, in every published model."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sparsemixer", normalised=False)

    def layer(window: int, mlp: FeedForward) -> Layer:
        # A window that the whole context fits into hides nothing.
        spec = sizes.attention(read, window if window < shape.context else 0)
        return Layer(Attention(shape.width, spec, positions), mlp, eps, centred=True)

    return Decoder(shape, tuple(map(layer, read_windows(read, shape.layers), mlps)), eps)


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    layers = values.get("layers")
    if isinstance(layers, int):
        values["window_layers"] = [bool(values.get("window"))] * layers
    if "rope.attention_factor" in values:
        values.setdefault("rope.scaling", "longrope")
        sizes = values.get("context"), values.get("rope.original_context")
        if sizes == (_LONG, _ORIGINAL):
            values["rope.attention_factor"] = _FACTOR_OF_3_5


def _read(config: Config) -> Config:
    require(config, "router_jitter_noise", value=_JITTER)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        return {}  # refused by name
    short, long = scaling.get("short_mscale"), scaling.get("long_mscale")
    if short != long:
        raise UnsupportedModelError(
            f"config.json: rope_scaling.short_mscale {short!r} and long_mscale {long!r} are not"
            " supported: they must be equal",
            param="rope_scaling",
        )
    return {} if short is None else {"rope.attention_factor": short}


FAMILY = Family(
    build=build,
    gguf={"phimoe": GGUFNames(fused=("attention.qkv",), read=_read_metadata)},
    hf={"phimoe": FolderNames(layer=MIXTRAL_EXPERTS, read=_read)},
)
