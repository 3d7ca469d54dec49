"""MiniMax M2: as Llama with experts, with norms of all queries and of all keys together.

Experts are scored by sigmoids and chosen with a bias. A part of each head is rotated.

MiniMax 2025 (https://huggingface.co/MiniMaxAI/MiniMax-M2); `transformers`, `minimax_m2`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heddle.models.blocks import QueryKeyNorm
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

build = partial(llama.build, norm=QueryKeyNorm.WHOLE, scoring="sigmoid")


def rotated_elements(config: Config) -> Config:
    """The elements of a head that are rotated, where config.json has the key for their number."""
    rotated = config.get("rotary_dim")
    return {} if rotated is None else {"rope.dim": rotated}


SELECTION_BIAS = {"mlp.selection_bias.weight": "block_sparse_moe.e_score_correction_bias"}
FAMILY = Family(
    build=build,
    gguf={"minimax-m2": GGUFNames()},
    hf={
        "minimax_m2": FolderNames(
            layer=llama.MIXTRAL_EXPERTS, tensors=SELECTION_BIAS, read=rotated_elements
        ),
    },
)
