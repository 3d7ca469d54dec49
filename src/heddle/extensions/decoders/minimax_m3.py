"""MiniMax M3, the text part: GPT-OSS's clamped SwiGLU, experts after the first layers.

In most layers, an indexer chooses blocks of tokens that attention sees. As long as a sequence has
no more blocks than it may choose, that is dense attention. Heddle serves no longer context, and
reads no tensor of the indexer.

MiniMax 2026 (https://huggingface.co/MiniMaxAI/MiniMax-M3); `transformers`, `minimax_m3_vl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.clamped import check_clamped
from heddle.extensions.decoders.minimax_m2 import SELECTION_BIAS, rotated_elements
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.families.llama import MIXTRAL_EXPERTS
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import by_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        UnsupportedModelError: the activation has other constants than the published model.
    """
    read = hyperparameters
    check_clamped(read)
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    attention = Attention(shape.width, sizes.attention(read), positions, QueryKeyNorm.HEADS, eps)
    mlps = feed_forwards(read, sizes, "clamped", scoring="sigmoid")
    return Decoder(shape, tuple(Layer(attention, mlp, eps) for mlp in mlps), eps)


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    blocks, size = (metadata.get(f"attention.indexer.{key}") for key in ("top_k", "block_size"))
    if isinstance(blocks, int) and isinstance(size, int):
        values["dense_context"] = blocks * size


def _read_config(config: Config) -> Config:
    """Values under the keys of `transformers`, or under those of the published folder."""
    found = {**rotated_elements(config)}
    sparse = config.get("sparse_attention_config")
    older = sparse if isinstance(sparse, dict) else {}
    blocks = config.get("index_topk_blocks") or older.get("sparse_topk_blocks")
    size = config.get("index_block_size") or older.get("sparse_block_size")
    if isinstance(blocks, int) and isinstance(size, int):
        found["dense_context"] = blocks * size
    kinds, frequencies = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if isinstance(kinds, list):
        found["expert_layers"] = by_kind("mlp_layer_types", kinds, {"sparse": True, "dense": False})
    elif isinstance(frequencies, list):
        found["expert_layers"] = [bool(one) for one in frequencies]
    return found


_SHARED = {
    f"mlp.shared.{part}": f"block_sparse_moe.shared_experts.{part}_proj"
    for part in ("gate", "up", "down")
}
FAMILY = Family(
    build=build,
    gguf={"minimax-m3": GGUFNames(read=_read_metadata)},
    hf={
        "minimax_m3_vl_text": FolderNames(
            hyperparameters={
                "mlp_width": "dense_intermediate_size",
                "expert_width": "intermediate_size",
                "shared_expert_width": "shared_intermediate_size",
            },
            layer=MIXTRAL_EXPERTS | _SHARED,
            tensors=SELECTION_BIAS,
            norms_without_one=True,
            activations={"silu": "clamped", "swigluoai": "clamped"},
            with_images=("minimax_m3_vl",),
            read=_read_config,
        ),
    },
)
