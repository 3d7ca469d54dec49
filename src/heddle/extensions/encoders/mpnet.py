"""MPNet: BERT's layers with a bias of scores by distance, the same in all layers, without segments.

Song et al. 2020 (arXiv:2004.09297); the buckets of distances are T5's (Raffel et al. 2020,
arXiv:1910.10683). Facts about files: `transformers` (`modeling_mpnet.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from heddle.extensions.encoders import encoder
from heddle.extensions.encoders.files import ACTIVATIONS, read_labels
from heddle.models.blocks import Attention
from heddle.models.family import Family
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.extensions.encoders.encoder import Encoder
    from heddle.models.blocks import AttentionWeights
    from heddle.models.ops import Loader, Ops
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_BUCKETS, _FURTHEST = 32, 128


@dataclass(frozen=True, slots=True)
class Buckets:
    """Terms of scores by the bucket of a distance: (buckets, heads), row by row.

    Half of the buckets are for later positions. The first half of each has a bucket for each
    distance, and those of the others grow, up to `_FURTHEST`.
    """

    terms: tuple[float, ...]
    heads: int

    def of(self, distances: NDArray[np.integer]) -> NDArray[np.float64]:
        """See :class:`heddle.models.ops.PositionBias`."""
        half, single = _BUCKETS // 2, _BUCKETS // 4
        far = np.abs(distances)
        # In float32, as `transformers` computes it: at a bound, float64 may choose another bucket.
        ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(single))
        grown = ratio / np.float32(math.log(_FURTHEST / single)) * np.float32(half - single)
        bucket = np.where(far < single, far, np.minimum(single + grown.astype(np.int64), half - 1))
        bucket = bucket + np.where(distances > 0, half, 0)
        table = np.array(self.terms, np.float64).reshape(_BUCKETS, self.heads)
        found: NDArray[np.float64] = table[bucket].T
        return found


@dataclass(frozen=True, slots=True)
class _Attention(Attention):
    """Attention whose scores have the checkpoint's bias."""

    def load(self, loader: Loader[W], name: str) -> Any:
        heads = self.spec.heads
        terms = loader.constants("position_bias", _BUCKETS * heads)
        return Buckets(terms, heads), Attention.load(self, loader, name)

    def forward(self, ops: Ops[A, W], weights: Any, x: A, positions: A, layer: int) -> A:
        bias, own = weights
        biased = replace(self, spec=replace(self.spec, bias=bias))
        attention: AttentionWeights[W] = own
        return Attention.forward(biased, ops, attention, x, positions, layer)


def build(hyperparameters: Hyperparameters, context: int) -> Encoder:
    """The encoder with these hyperparameters."""
    found = encoder.build(hyperparameters, context)
    first = found.layers[0]
    assert isinstance(first.mixer, Attention), "an encoder's mixer"
    mixer = _Attention(first.mixer.width, first.mixer.spec, None)
    return replace(found, layers=(replace(first, mixer=mixer),) * found.shape.layers)


def _read(config: Config) -> Config:
    """The positions of padding tokens, which have id 1 whatever config.json says, come first."""
    return {**read_labels(config), "first_position": 2}


def _make(stored: Mapping[str, Stored], _: Config) -> Mapping[str, MadeTensor]:
    """The table of terms as a vector."""
    label = next((name for name in stored if name.endswith("relative_attention_bias.weight")), None)
    if label is None:
        return {}
    rows, heads = stored[label].shape
    made = MadeTensor(stored[label].dtype, (rows * heads,), (label,), lambda raw: raw[0])
    return {"position_bias.weight": made}


FAMILY = Family(
    build=build,
    gguf={},
    hf={
        "mpnet": FolderNames(
            hyperparameters={"norm_eps": "layer_norm_eps"},
            values={"causal": False},
            outside={
                "embedding": "model.embeddings.word_embeddings",
                "positions": "model.embeddings.position_embeddings",
                "embedding_norm": "model.embeddings.LayerNorm",
                "pooler": "classifier.dense",
                "classifier": "classifier.out_proj",
            },
            layer={
                **{f"attention.{one}": f"attention.attn.{one}" for one in "qkv"},
                "attention.output": "attention.attn.o",
                "post_attention_norm": "attention.LayerNorm",
                "mlp.up": "intermediate.dense",
                "mlp.down": "output.dense",
                "post_mlp_norm": "output.LayerNorm",
            },
            bases=("mpnet.",),
            layers=("encoder.layer.",),
            activations=ACTIVATIONS,
            read=_read,
            make=_make,
        ),
    },
)
