"""Llama 4, the text part: one expert a token, whose input is weighed, and a shared expert.

Every fourth layer has no positions, and its queries grow with the number of chunks of the text. In
the other layers a token sees its chunk.

Meta 2025 (https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E-Instruct); `transformers`,
`llama4`; llama.cpp, `llama4.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedModelError
from heddle.extensions.decoders.rotated import read_rotated
from heddle.extensions.decoders.transposed import transposed_experts
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.experts import MixtureOfExperts, feed_forwards
from heddle.models.family import Family
from heddle.models.ops import Temperature
from heddle.models.positions import rope
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import numbers_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_PERIOD = 4
_CHUNK = 8192
_GROWTH = {"attention.temperature": 0.1, "attention.temperature_length": _CHUNK}
_MAVERICK = 128
"""Its number of experts. llama.cpp too knows by it that queries and keys have no norms."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        UnsupportedModelError: a token has several experts.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions, everywhere = rope(read, shape.head_dim, context), sizes.attention(read)
    within, growth = everywhere, None
    if read.get("attention.chunk") is not None and read.integer("attention.chunk") < shape.context:
        within = replace(everywhere, window=read.integer("attention.chunk"), aligned=True)
    if read.get("attention.temperature"):
        length = read.integer("attention.temperature_length")
        growth = Temperature(read.number("attention.temperature"), length, first=1)
    norm = QueryKeyNorm.PLAIN if read.flag("attention.plain_norms", True) else QueryKeyNorm.NONE
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid", normalised=False)

    def layer(rotated: bool, mlp: FeedForward) -> Layer:
        if rotated:
            attention = Attention(shape.width, within, positions, norm, eps)
        else:
            attention = Attention(shape.width, everywhere, None, temperature=growth)
        return Layer(attention, _weighing_input(read, mlp), eps)

    layers = map(layer, read_rotated(read, shape.layers, _PERIOD), mlps)
    return Decoder(shape, tuple(layers), eps)


def _weighing_input(read: Hyperparameters, mlp: FeedForward) -> FeedForward:
    if not isinstance(mlp, MixtureOfExperts):
        return mlp
    if mlp.spec.used != 1:
        label = read.label("experts_used")
        raise UnsupportedModelError(
            f"{label} {mlp.spec.used} is not supported: a token has one expert", param=label
        )
    return replace(mlp, spec=replace(mlp.spec, weighs_input=True))


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """What files do not name. A window of 0 means no chunks, and no growth (llama.cpp)."""
    layers, step = values.get("layers"), metadata.get("interleave_moe_layer_step")
    if isinstance(layers, int) and isinstance(step, int) and step > 0:
        values["expert_layers"] = [(layer + 1) % step == 0 for layer in range(layers)]
    if metadata.get("attention.sliding_window") == 0:
        values["rope.layer_period"] = (layers if isinstance(layers, int) else 0) + 1
    else:
        values |= {"attention.chunk": _CHUNK} | _GROWTH
    values.pop("window", None)
    values["attention.plain_norms"] = values.get("experts") != _MAVERICK
    if "expert_width" in values:
        values["shared_expert_width"] = values["expert_width"]


def _read_config(config: Config) -> Config:
    found: dict[str, object] = {"attention.plain_norms": config.get("use_qk_norm", True)}
    if not config.get("no_rope_layers"):
        found["rope.layers"] = None  # the period applies
    layers, chosen = config.get("num_hidden_layers"), config.get("moe_layers")
    step = config.get("interleave_moe_layer_step", 1)
    if isinstance(layers, int) and isinstance(chosen, list):
        among = numbers_in(chosen)
        found["expert_layers"] = [layer in among for layer in range(layers)]
    elif isinstance(layers, int) and isinstance(step, int) and step > 0:
        found["expert_layers"] = [(layer + 1) % step == 0 for layer in range(layers)]
    defaults = {"attention.chunk": _CHUNK} | _GROWTH
    found |= {name: defaults[name] for name, key in _OF_CHUNKS.items() if key not in config}
    if not config.get("attn_temperature_tuning", True):
        found["attention.temperature"] = None
    return found


_OF_CHUNKS = {
    "attention.chunk": "attention_chunk_size",
    "attention.temperature": "attn_scale",
    "attention.temperature_length": "floor_scale",
}
_PARTS = ("gate", "up", "down")
_LAYER = {
    "mlp.router": "feed_forward.router",
    **{f"mlp.{part}": f"feed_forward.{part}_proj" for part in _PARTS},
    **{f"mlp.shared.{part}": f"feed_forward.shared_expert.{part}_proj" for part in _PARTS},
    **{f"mlp.experts.{part}": f"feed_forward.experts.*.{part}_proj" for part in _PARTS},
}
FAMILY = Family(
    build=build,
    gguf={"llama4": GGUFNames(values=INTERLEAVED, read=_read_metadata)},
    hf={
        "llama4_text": FolderNames(
            hyperparameters={
                "mlp_width": "intermediate_size_mlp",
                "expert_width": "intermediate_size",
                "shared_expert_width": "intermediate_size",
                **_OF_CHUNKS,
            },
            values=INTERLEAVED,
            layer=_LAYER,
            with_images=("llama4",),
            read=_read_config,
            make=transposed_experts,
        ),
    },
)
