"""Granite 4's hybrids: as Granite, and most layers have Mamba-2 in place of attention.

IBM 2025 (https://huggingface.co/ibm-granite). Layers with experts have a shared expert.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders import granite
from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import granite as config
from heddle.extensions.hybrids.mamba2_mixer import mamba2
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

build = partial(granite.build, recurrence=mamba2)


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    granite.read_positions(values, metadata)
    names.recurrent_without_heads(values, metadata)


FAMILY = Family(
    build=build,
    gguf={
        "granitehybrid": GGUFNames(
            values=INTERLEAVED,
            layer=names.GGUF_MAMBA,
            tensors=names.GGUF_VECTORS,
            read=_read_gguf,
        )
    },
    hf={
        "granitemoehybrid": FolderNames(
            hyperparameters=names.FOLDER_MAMBA_KEYS
            | {
                "mlp_width": "shared_intermediate_size",
                "shared_expert_width": "shared_intermediate_size",
                "expert_width": "intermediate_size",
            },
            layer=names.FOLDER_MAMBA | granite.MIXTURE | granite.SHARED,
            layer_without_experts=names.FOLDER_MAMBA
            | {"mlp.gate_up": "shared_mlp.input_linear", "mlp.down": "shared_mlp.output_linear"},
            tensors=names.folder_vectors("mamba"),
            read=config.sizes,
        )
    },
)
