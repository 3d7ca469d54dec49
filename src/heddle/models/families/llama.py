"""Llama and Mixtral: norms before each part, SwiGLU. Mixtral has experts.

Qwen2, Mistral, Ministral 3, Phi-3, ERNIE 4.5 and Seed-OSS differ from Llama only by biases, windows
and rope.

Touvron et al. 2023 (arXiv:2302.13971); Qwen2: Yang et al. 2024 (arXiv:2407.10671); Mistral: Jiang
et al. 2023 (arXiv:2310.06825); Mixtral: Jiang et al. 2024 (arXiv:2401.04088); Phi-3: Abdin et al.
2024 (arXiv:2404.14219).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.positions import rope, temperature
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward
    from heddle.weights.hyperparameters import Hyperparameters


def build(
    hyperparameters: Hyperparameters,
    context: int,
    *,
    norm: QueryKeyNorm = QueryKeyNorm.NONE,
    scoring: str = "softmax",
    weights_normalised: bool = True,
    shared_gated: bool = False,
) -> Decoder:
    """The decoder with these hyperparameters.

    `norm` says what is normed of queries and keys. The other options are of layers with experts;
    see :func:`heddle.models.experts.feed_forwards`.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions, growth = rope(read, shape.head_dim, context), temperature(read, shape.head_dim)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(
        read,
        sizes,
        activation,
        scoring=scoring,
        normalised=weights_normalised,
        shared_gated=shared_gated,
    )

    def layer(window: int, mlp: FeedForward) -> Layer:
        spec = sizes.attention(read, window)
        return Layer(Attention(shape.width, spec, positions, norm, eps, growth), mlp, eps)

    windows = read_windows(read, shape.layers)
    layers = tuple(map(layer, windows, mlps))
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(shape, layers[-1], eps) if has_head else None
    return Decoder(shape, layers, eps, head=head)


def _read_phi3(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """All layers have a window if a key gives its width: llama.cpp ignores it, `transformers` not.

    The divisors of longrope are tensors, and no key says that they are there.
    """
    layers = values.get("layers")
    if not isinstance(values.get("window_period"), list) and isinstance(layers, int):
        values["window_layers"] = ["window" in values] * layers
    if "rope.attention_factor" in values:
        values.setdefault("rope.scaling", "longrope")


MIXTRAL_EXPERTS = {
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.gate": "block_sparse_moe.experts.*.w1",
    "mlp.experts.up": "block_sparse_moe.experts.*.w3",
    "mlp.experts.down": "block_sparse_moe.experts.*.w2",
}
FAMILY = Family(
    build=build,
    gguf={
        "llama": GGUFNames(values=INTERLEAVED),
        "ernie4_5": GGUFNames(values=INTERLEAVED),
        "mistral3": GGUFNames(values=INTERLEAVED),
        "phi3": GGUFNames(
            layer={"mlp.gate_up": "ffn_up"}, fused=("attention.qkv", "mlp.gate_up"), read=_read_phi3
        ),
        "qwen2": GGUFNames(),
        "seed_oss": GGUFNames(layer={"mlp_norm": "post_attention_norm"}),
    },
    hf={
        "llama": FolderNames(with_images=("llava", "idefics3", "smolvlm")),
        "ernie4_5": FolderNames(values=INTERLEAVED),
        "ministral": FolderNames(),
        "ministral3": FolderNames(with_images=("mistral3",)),
        "mistral": FolderNames(),
        "mixtral": FolderNames(layer=MIXTRAL_EXPERTS),
        "phi3": FolderNames(scalings={"su": "longrope", "yarn": "longrope"}),
        "qwen2": FolderNames(with_images=("internvl", "internvl_chat")),
        "seed_oss": FolderNames(),
    },
)
