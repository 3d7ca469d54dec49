"""A slot's state of linear attention: a matrix for each head, and the tokens since it was made.

Positions are cut into blocks. The matrix is the one at the last cut. Tokens after the cut stay as
rows until their block is full. So the state at a position depends on the position and on the tokens
alone, and not on how they were divided among steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from heddle.executors.graph import recording
from heddle.state import PAGE_TOKENS, Fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from heddle.executors.graph.forward import Forward
    from heddle.extensions.torch.division.divide import Division
    from heddle.models.ops import LinearAttentionSpec, StatePlace
    from heddle.state import StateKind

BLOCK = 16
"""Positions of a block."""

assert PAGE_TOKENS % BLOCK == 0

_UNIT = 16  # elements; places begin at multiples (`fixed_state`)


class Rows(NamedTuple):
    """Rows of tokens, or their widths; see `linear_blocks.py`.

    Attributes:
        keys: keys (key_heads * key_dim).
        factors: decays.
        solved: rows of T (heads * BLOCK); without elements if the rule does not correct.
        reduced: r (heads * value_dim).
    """

    keys: torch.Tensor
    factors: torch.Tensor
    solved: torch.Tensor
    reduced: torch.Tensor


def row_widths(spec: LinearAttentionSpec, factors: int) -> tuple[int, int, int, int]:
    """Elements of the rows of a token that has so many decays."""
    keys, values = spec.key_heads * spec.key_dim, spec.heads * spec.value_dim
    return keys, factors, spec.heads * BLOCK if spec.corrects else 0, values


def rows_first(spec: LinearAttentionSpec) -> int:
    """The element at which the rows of an open block begin, after the matrices."""
    return -(-spec.state_count // _UNIT) * _UNIT


def state_count(spec: LinearAttentionSpec, factors: int) -> int:
    """Elements of the matrices and of an open block."""
    return rows_first(spec) + BLOCK * sum(row_widths(spec, factors))


def with_rows(place: StatePlace, spec: LinearAttentionSpec, factors: int) -> StatePlace:
    """The place of the matrices and of an open block. It is the last one of its layer."""
    return replace(place, count=state_count(spec, factors))


def kinds_with_rows(
    forward: Forward, kinds: Sequence[Sequence[StateKind]], division: Division | None = None
) -> list[tuple[StateKind, ...]]:
    """The kinds of state of each layer, of a rank if there is a division, with open blocks."""
    counts: dict[int, int] = {}
    for node in forward.nodes:
        if isinstance(node, recording.LinearAttend):
            spec, factors = node.spec, node.inputs[3].width // node.spec.heads
            if division is not None:
                heads, key_heads = division.value_heads(spec)[0], division.key_heads(spec)[0]
                spec = replace(spec, heads=len(heads), key_heads=len(key_heads))
            more = state_count(spec, factors * spec.heads) - rows_first(spec)
            counts[node.place.layer] = 4 * more

    def own(layer: int, kind: StateKind) -> StateKind:
        return Fixed(kind.bytes + counts.get(layer, 0)) if isinstance(kind, Fixed) else kind

    return [tuple(own(layer, kind) for kind in of) for layer, of in enumerate(kinds)]
