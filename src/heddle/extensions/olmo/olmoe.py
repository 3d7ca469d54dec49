"""OLMoE: as Llama with experts, with norms of all queries and of all keys together.

Muennighoff et al. 2024 (arXiv:2409.02060). The weights of a token's experts need not sum to 1.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.models.blocks import QueryKeyNorm
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

build = partial(llama.build, norm=QueryKeyNorm.WHOLE, weights_normalised=False)


def _refuse_limits(config: Config) -> Config:
    if config.get("clip_qkv") is not None:
        raise UnsupportedModelError(
            f"config.json: clip_qkv {config['clip_qkv']!r} is not supported: limits of queries,"
            " keys and values",
            param="clip_qkv",
        )
    return {}


FAMILY = Family(
    build=build,
    gguf={"olmoe": GGUFNames()},
    hf={"olmoe": FolderNames(read=_refuse_limits)},
)
