"""Apertus: as Llama, with norms of heads, and feed-forward layers with xIELU.

Swiss AI 2025 (https://huggingface.co/swiss-ai); `transformers`, `apertus`; llama.cpp,
`conversion/apertus.py` and `apertus.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError
from heddle.extensions.apertus.xielu import NUMBERS, Xielu, XieluMLP
from heddle.extensions.decoders.joined import flat, made_of
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    read.choice("activation", ("xielu",), "xielu")
    positions = rope(read, shape.head_dim, context)
    attention = Attention(shape.width, sizes.attention(read), positions, QueryKeyNorm.HEADS, eps)
    layers = tuple(
        Layer(attention, XieluMLP(shape.width, sizes.mlp_width, activation), eps)
        for activation in _activations(read, shape.layers)
    )
    return Decoder(shape, layers, eps)


def _activations(read: Hyperparameters, layers: int) -> list[Xielu | None]:
    """The activation of each layer; None if tensors have its numbers."""
    stored = read.get("activation_numbers")
    if stored is None:
        return [None] * layers
    assert isinstance(stored, dict), "made by this family"
    for label, numbers in stored.items():
        is_list = isinstance(numbers, list) and len(numbers) == layers
        if not is_list or not all(type(one) in (int, float) for one in numbers):
            key = f"xielu.{label}"
            raise ModelFileError(f"{key} must have {layers} numbers, got {numbers!r}", field=key)
    of_layers = ({label: stored[label][layer] for label in NUMBERS} for layer in range(layers))
    return [Xielu.of(numbers, f"blk.{layer}.xielu") for layer, numbers in enumerate(of_layers)]


def _read(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    values["activation_numbers"] = {label: metadata.get(f"xielu.{label}") for label in NUMBERS}


def _make(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The numbers of the activation, two of which are stored without an axis."""
    parts = {f"mlp.act_fn.{label}": {f"mlp.{label}.weight": flat} for label in NUMBERS}
    return made_of(tensors, "layers.", parts, kinds=("",))


FAMILY = Family(
    build=build,
    gguf={"apertus": GGUFNames(plain="xielu.", read=_read)},
    hf={
        "apertus": FolderNames(
            layer={
                "attention_norm": "attention_layernorm",
                "mlp_norm": "feedforward_layernorm",
            },
            tensors={f"mlp.{label}.weight": f"mlp.act_fn.{label}" for label in NUMBERS},
            activations={"xielu": "xielu"},
            make=_make,
        ),
    },
)
