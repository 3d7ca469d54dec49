"""Nemotron-H: each layer is Mamba-2, attention without positions, or a feed-forward part.

NVIDIA 2025 (arXiv:2504.03624; `transformers`, `models/nemotron_h`; llama.cpp, `nemotron-h.cpp`).
Feed-forward parts have squared ReLUs and no gates. Nemotron 3 has experts, which are chosen as in
DeepSeek-V3, and a shared expert. In its larger models, experts read a latent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import nemotron_h as config
from heddle.extensions.hybrids.mamba2_mixer import mamba2
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import FeedForward, Mixer
    from heddle.weights.hyperparameters import Hyperparameters

_ACTIVATION = "squared_relu"


_PARTS = ("recurrence", "attention", "mlp")
_UP_DOWN = ("up", "down")


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: a hyperparameter has a value that is not supported.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    mixers: dict[str, Mixer] = {
        "attention": Attention(shape.width, sizes.attention(read), None),
        "recurrence": mamba2(read, shape.width, eps),
    }
    activation = read.choice("activation", (_ACTIVATION,), _ACTIVATION)
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")

    def layer(part: str, mlp: FeedForward) -> Layer:
        return Layer(None, mlp, eps) if part == "mlp" else Layer(mixers[part], None, eps)

    return Decoder(shape, tuple(map(layer, read_parts(read, shape.layers), mlps)), eps)


def read_parts(hyperparameters: Hyperparameters, layers: int) -> list[str]:
    """The part of each layer, in a model whose layers have one part: see `layer_parts`.

    Raises:
        ModelFileError: the checkpoint lists no known part for each layer.
    """
    listed = hyperparameters.get("layer_parts")
    if not isinstance(listed, list) or len(listed) != layers or not set(listed) <= set(_PARTS):
        hyperparameters.fail(
            "layer_parts", f"must have {layers} entries of {', '.join(_PARTS)}, got {listed!r}"
        )
    return listed


def _read_parts_of_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """The part of each layer: a recurrence if it has neither key/value heads nor a width.

    Layers of a prediction head come last.
    """
    layers, widths = values.get("layers"), values.get("mlp_width")
    kv_heads = values.get("kv_heads")
    if not (isinstance(layers, int) and isinstance(widths, list) and isinstance(kv_heads, list)):
        return
    kinds = zip(widths[:layers], kv_heads[:layers], strict=False)
    values["layer_parts"] = [
        "mlp" if width else "attention" if heads else "recurrence" for width, heads in kinds
    ]
    values["mlp_width"], values["kv_heads"] = max(widths, default=0), max(kv_heads, default=0)


_GGUF = GGUFNames(
    hyperparameters={"expert_latent": "moe_latent_size"},
    layer=names.GGUF_ONE_PART | {"mlp.latent": "ffn_latent_down", "mlp.result": "ffn_latent_up"},
    tensors=names.GGUF_VECTORS,
    read=_read_parts_of_gguf,
)
FAMILY = Family(
    build=build,
    gguf={"nemotron_h": _GGUF, "nemotron_h_moe": _GGUF},
    hf={
        "nemotron_h": FolderNames(
            hyperparameters={
                "norm_eps": "layer_norm_epsilon",
                "layer_parts": "layers_block_type",
                "state.heads": "mamba_num_heads",
                "state.groups": "n_groups",
                "state.key_dim": "ssm_state_size",
                "state.taps": "conv_kernel",
                "expert_latent": "moe_latent_size",
                "shared_expert_width": "moe_shared_expert_intermediate_size",
            },
            outside={"embedding": "model.embeddings", "output_norm": "model.norm_f"},
            layer={
                **names.FOLDER_ONE_PART,
                **{f"attention.{part}": f"mixer.{part}_proj" for part in ("q", "k", "v")},
                "attention.output": "mixer.o_proj",
                "mlp.router": "mixer.gate",
                "mlp.latent": "mixer.fc1_latent_proj",
                "mlp.result": "mixer.fc2_latent_proj",
                **{f"mlp.{part}": f"mixer.{part}_proj" for part in _UP_DOWN},
                **{f"mlp.shared.{part}": f"mixer.shared_experts.{part}_proj" for part in _UP_DOWN},
                **{f"mlp.experts.{part}": f"mixer.experts.*.{part}_proj" for part in _UP_DOWN},
            },
            tensors=names.folder_vectors("mixer")
            | {"mlp.selection_bias.weight": "mixer.gate.e_score_correction_bias"},
            read=config.sizes,
        )
    },
)
