"""The common part of tiny models with a prediction head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.tiny.base import Random, TinyModel

if TYPE_CHECKING:
    import numpy as np

HEAD_NAMES = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
}


@dataclass(frozen=True)
class TinyHead(TinyModel):
    """With `mtp` the files have one more layer, a head that predicts one more token.

    With `own_matrices` the head has an embedding and an output matrix.
    """

    mtp: bool = False
    own_matrices: bool = False

    @property
    def head_like(self) -> int:
        """The number of a layer with the parts of the head's."""
        return self.layers - 1

    def metadata(self) -> dict[str, object]:
        common = super().metadata()
        if not self.mtp:
            return common
        prefix = str(common["general.architecture"])
        return common | {
            f"{prefix}.nextn_predict_layers": 1,
            f"{prefix}.block_count": self.layers + 1,
        }

    def further(self) -> dict[str, np.ndarray]:
        if not self.mtp:
            return {}
        random, width, mean = Random(21), self.width, self.norm_mean
        found = self.layer_at(self.head_like, random) | {
            "eh_proj.weight": random.matrix(width, 2 * width),
            "enorm.weight": random.near(mean, width),
            "hnorm.weight": random.near(mean, width),
            "shared_head.norm.weight": random.near(mean, width),
        }
        if self.own_matrices:
            found["embed_tokens.weight"] = random.matrix(self.vocabulary, width)
            found["shared_head.head.weight"] = random.matrix(self.vocabulary, width)
        return {f"model.layers.{self.layers}.{name}": values for name, values in found.items()}
