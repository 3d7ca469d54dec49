"""The attention of a model's layers, for tests of what families make of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.blocks import Attention

if TYPE_CHECKING:
    from heddle.models.decoder import Decoder


def attentions(model: Decoder) -> list[Attention]:
    """The attention of each layer that has one."""
    return [one.mixer for one in model.layers if isinstance(one.mixer, Attention)]
