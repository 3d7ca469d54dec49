"""Granite: as Llama, with factors on embeddings, scores, what each part adds, and logits.

Some have experts. Granite 4's hybrids, which an extension brings, have a recurrence in most layers.

IBM 2024 (https://huggingface.co/ibm-granite); the factors are those of muP, Yang et al. 2022
(arXiv:2203.03466).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.recurrent import read_recurrent
from heddle.extensions.decoders.rotated import read_rotated
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.models.blocks import FeedForward, Mixer
    from heddle.weights.hyperparameters import Hyperparameters


def build(
    hyperparameters: Hyperparameters,
    context: int,
    *,
    recurrence: Callable[[Hyperparameters, int, float], Mixer] | None = None,
) -> Decoder:
    """The decoder with these hyperparameters.

    `recurrence` makes the mixer of recurrent layers from the hyperparameters, the width and the
    epsilon of norms; None: all layers have attention.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="softmax_of_chosen")
    residual = read.number("residual_scale", 1.0)

    attention = sizes.attention(read)
    recurrent = [False] * shape.layers
    if recurrence is not None:
        recurrent = read_recurrent(read, shape.layers, period=1)
    mixer = recurrence(read, shape.width, eps) if recurrence and any(recurrent) else None

    def layer(rotated: bool, is_recurrent: bool, mlp: FeedForward) -> Layer:
        own = Attention(shape.width, attention, positions if rotated else None)
        return Layer(mixer if mixer and is_recurrent else own, mlp, eps, residual_scale=residual)

    return Decoder(
        shape,
        tuple(map(layer, read_rotated(read, shape.layers), recurrent, mlps)),
        eps,
        embedding_scale=read.number("embedding_scale", 1.0),
        logit_scale=1 / read.number("logit_divisor", 1.0),
        scales_pictures=True,
    )


def read_positions(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """No layer has positions if the key says "not finetuned" (llama.cpp, `granite.cpp`)."""
    if metadata.get("rope.scaling.finetuned") is False:
        values["rope.layer_period"] = 1


GGUF = GGUFNames(values=INTERLEAVED, read=read_positions)
MIXTURE = {
    "mlp.router": "block_sparse_moe.router.layer",
    "mlp.experts.gate": "block_sparse_moe.input_linear",
    "mlp.experts.up": "block_sparse_moe.input_linear",
    "mlp.experts.down": "block_sparse_moe.output_linear",
}
SHARED = {
    "mlp.shared.gate_up": "shared_mlp.input_linear",
    "mlp.shared.down": "shared_mlp.output_linear",
}
FAMILY = Family(
    build=build,
    gguf={"granite": GGUF, "granitemoe": GGUF},
    hf={
        "granite": FolderNames(with_images=("llava_next",)),
        "granitemoe": FolderNames(layer=MIXTURE),
        "granitemoeshared": FolderNames(
            hyperparameters={"shared_expert_width": "shared_intermediate_size"},
            layer=MIXTURE | SHARED,
        ),
    },
)
