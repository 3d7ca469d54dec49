"""ERNIE 4.5 with experts: as Llama, with neighbours rotated as pairs, and shared experts.

A bias joins the softmax of the router's logits when experts are chosen. Baidu 2025 (ERNIE 4.5
technical report); `transformers`, `ernie4_5_moe`; llama.cpp, `conversion/ernie.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.joined import flat, made_of
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored


def _with_experts(layers: object, first: object, last: object, step: object) -> Config:
    """Which layers have experts: every `step` layers one, from `first` to `last`."""
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int) and step > 0:
        numbers = range(layers if isinstance(layers, int) else 0)
        return {
            "expert_layers": [first <= one <= last and (one + 1) % step == 0 for one in numbers]
        }
    return {"expert_layers": (first, last, step)}  # refused by name when the model is built


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    layers, step = values.get("layers"), metadata.get("interleave_moe_layer_step", 1)
    values.update(_with_experts(layers, values.get("dense_layers", 0), layers, step))


def _read(config: Config) -> Config:
    layers, last = config.get("num_hidden_layers"), config.get("moe_layer_end_index", -1)
    found = _with_experts(
        layers,
        config.get("moe_layer_start_index", 1),
        layers if last == -1 else last,
        config.get("moe_layer_interval", 1),
    )
    return found | {"prediction_layers": 0}


def _make(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The bias is stored as one row of a matrix."""
    parts = {"mlp.moe_statics.e_score_correction_bias": {"mlp.selection_bias.weight": flat}}
    return made_of(tensors, "layers.", parts, kinds=("",))


FAMILY = Family(
    build=llama.build,
    gguf={"ernie4_5-moe": GGUFNames(values=INTERLEAVED, read=_read_metadata)},
    hf={
        "ernie4_5_moe": FolderNames(
            hyperparameters={
                "experts": "moe_num_experts",
                "experts_used": "moe_k",
                "shared_experts": "moe_num_shared_experts",
            },
            values=INTERLEAVED,
            layer=SHARED_EXPERTS,
            read=_read,
            make=_make,
        )
    },
)
