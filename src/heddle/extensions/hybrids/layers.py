"""Layers of models in which some have a recurrence and the others attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.blocks import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.models.blocks import FeedForward, Mixer


def hybrid_layers(
    recurrent: Iterable[bool],
    recurrence: Mixer,
    attention: Mixer,
    mlps: Iterable[FeedForward],
    norm_eps: float,
) -> tuple[Layer, ...]:
    """Layers with a recurrence where `recurrent` is true, and the others with attention."""
    return tuple(
        Layer(recurrence if is_recurrent else attention, mlp, norm_eps)
        for is_recurrent, mlp in zip(recurrent, mlps, strict=True)
    )
