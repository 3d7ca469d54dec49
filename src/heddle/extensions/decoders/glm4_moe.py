"""GLM-4.5: as Llama, with norms of heads in some models, and experts after the first layers.

Experts are scored by sigmoids, chosen with a bias, and joined by shared experts. GLM-4.5 Team 2025
(arXiv:2508.06471). The text part of GLM-4.5V is the same (GLM-V Team 2025, arXiv:2507.01006). Solar
Open has experts in all layers (Upstage 2025, https://huggingface.co/upstage/Solar-Open-100B;
`transformers`, `solar_open`).
"""

from __future__ import annotations

from functools import partial

from heddle.models.blocks import QueryKeyNorm
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames

build = partial(llama.build, norm=QueryKeyNorm.IF_STORED, scoring="sigmoid")


FAMILY = Family(
    build=build,
    gguf={"glm4moe": GGUFNames(layer={"mlp_norm": "post_attention_norm"})},
    hf={
        "glm4_moe": FolderNames(layer=SHARED_EXPERTS),
        "solar_open": FolderNames(
            hyperparameters={"mlp_width": "moe_intermediate_size"},
            values={"rope.base": 1_000_000.0},
            layer=SHARED_EXPERTS,
        ),
        "glm4v_moe_text": FolderNames(
            layer=SHARED_EXPERTS, rotated_share=0.5, with_images=("glm4v_moe", "glm46v")
        ),
    },
)
