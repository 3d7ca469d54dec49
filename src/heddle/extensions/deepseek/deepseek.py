"""DeepSeek-V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, Mistral 4, Sarvam: latents, and experts.

DeepSeek-V2 (arXiv:2405.04434) scores experts by a softmax, V3 (arXiv:2412.19437) by sigmoids with a
bias. Kimi K2, GLM-4.7-Flash and Sarvam are as V3. So is the text part of Kimi K2.5. Mistral 4
scores experts by a softmax, and its queries grow with their position.

In DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5, an indexer chooses the tokens that attention sees:
`index_topk` of them. As long as a sequence has no more tokens, that is dense attention. Heddle
serves no longer context, and reads no tensor of the indexer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.deepseek import config
from heddle.extensions.deepseek.latent import latent_attention, latent_model_sizes
from heddle.extensions.deepseek.names import FOLDER_LATENTS, GGUF_LATENTS, read_deepseek
from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import STACKED_GATE_UP, FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    attention = latent_attention(read, context)
    sizes = latent_model_sizes(read, attention)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, normalised=False)
    eps = sizes.norm_eps
    layers = tuple(Layer(attention, mlp, eps) for mlp in mlps)
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(sizes.shape, layers[-1], eps) if has_head else None
    return Decoder(sizes.shape, layers, eps, head=head)


_GGUF = GGUFNames(values=INTERLEAVED, layer=GGUF_LATENTS, read=read_deepseek)
_INDEXED_GGUF = replace(
    _GGUF,
    hyperparameters={"dense_context": "attention.indexer.top_k"},
    values=INTERLEAVED | {"expert_scoring": "sigmoid"},
)
_FOLDER = FolderNames(layer=FOLDER_LATENTS, read=config.sizes)
_LARGE = (
    "Heddle lacks latents that several layers share, and queries that grow in each head by its own"
    " factor; the nearest that it serves is mistral4"
)
_INDEXED_FOLDER = replace(_FOLDER, hyperparameters={"dense_context": "index_topk"})
FAMILY = Family(
    build=build,
    gguf={
        "deepseek2": _GGUF,
        "deepseek32": _INDEXED_GGUF,
        "glm-dsa": _INDEXED_GGUF,
        "mistral4": _GGUF,
    },
    hf={
        "deepseek_v2": _FOLDER,
        "deepseek_v3": _FOLDER,
        "deepseek_v32": _INDEXED_FOLDER,
        "glm4_moe_lite": _FOLDER,
        "glm_moe_dsa": _INDEXED_FOLDER,
        "kimi_k2": replace(_FOLDER, with_images=("kimi_k25",)),
        "mistral4": replace(
            _FOLDER,
            layer=FOLDER_LATENTS | STACKED_GATE_UP,
            tensors={"mlp.experts.down.weight": "mlp.experts.down_proj"},
        ),
        # "deepseek_yarn" is Sarvam's own name of yarn.
        "sarvam_mla": replace(_FOLDER, scalings={"deepseek_yarn": "yarn"}),
    },
    near={
        "longcat_flash": "Heddle lacks experts that return their input; the nearest that it serves"
        " is deepseek_v3",
        "mistral_large4": _LARGE,
        "mistral_large4_text": _LARGE,
    },
)
