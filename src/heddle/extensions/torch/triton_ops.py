"""The operations of a forward pass as Triton kernels (`kernels/`), for GPUs.

What has no kernel is done by the operations on torch tensors: the choice of experts, and small
elementwise operations.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from heddle.executors.graph import recording
from heddle.extensions.torch.kernels.activations import activate, gated, gated_operand
from heddle.extensions.torch.kernels.attention import attend
from heddle.extensions.torch.kernels.experts import combine, sort_choices
from heddle.extensions.torch.kernels.linear_blocks import linear_attend
from heddle.extensions.torch.kernels.matmul import Tiles, joint, multiply, multiply_each
from heddle.extensions.torch.kernels.norms import add_norm, norm
from heddle.extensions.torch.kernels.operands import Operand, operand, operand_type
from heddle.extensions.torch.kernels.pages import store
from heddle.extensions.torch.kernels.recurrence import Runs, convolve, runs_of
from heddle.extensions.torch.kernels.rope import rotate, rotate_and_store
from heddle.extensions.torch.kernels.routing import choose
from heddle.extensions.torch.kernels.selective_scan import scan
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.ops import TorchOps, attention_shape
from heddle.extensions.torch.tiles import MOST_READ, TILE
from heddle.extensions.torch.weights import Stack

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from heddle.executors.graph.recording import Node
    from heddle.extensions.torch.attention import Shape
    from heddle.extensions.torch.weights import Filters, Matrix
    from heddle.models.ops import (
        AttentionSpec,
        ExpertSpec,
        ExpertWeights,
        LinearAttentionSpec,
        RopeSpec,
        StatePlace,
    )
    from heddle.weights.tensor_types import TensorType


class TritonOps(TorchOps):
    """The operations of one step, and joined ones (`heddle.extensions.torch.fused_ops`)."""

    joins = True
    uses_matmuls_of_torch = False
    most_read = MOST_READ

    _taken: tuple[Tensor, dict[torch.dtype, Operand]] | None = None

    @staticmethod
    def obstacle(node: Node) -> str:
        if isinstance(node, recording.TokenShift | recording.RwkvAttend):
            return "RWKV's recurrence is computed token by token"
        biased = isinstance(node, recording.Attend) and node.spec.bias is not None
        return "a bias by distance waits for the step's positions" if biased else ""

    @staticmethod
    def joint(w: Matrix) -> Hashable:
        return joint(w)

    def _product(self, x: Tensor, w: Matrix) -> Tensor:
        return multiply(self._operand(x, w.type), w)

    def linear_each(self, x: Tensor, weights: tuple[Matrix, ...]) -> tuple[Tensor, ...]:
        """See `heddle.extensions.torch.fused_ops.FusedOps`."""
        self._check()
        products = multiply_each(self._operand(x, weights[0].type), weights)
        changed = zip(products, weights, strict=True)
        return tuple([self._changed(x, y, w) for y, w in changed])

    def head_linear(self, x: Tensor, w: Stack) -> Tensor:
        self._check()
        heads = x.reshape(len(x) * w.count, -1)
        rows = torch.arange(len(heads), device=x.device).reshape(-1, w.count).T.flatten()
        each = len(x) // TILE
        numbers = torch.arange(w.count, device=x.device).repeat_interleave(each)
        y = multiply(
            operand(heads, operand_type(w.whole.type)),
            w.whole,
            tiles=Tiles(rows, rows, numbers, numbers * each, each),
            rows=w.out_features,
            y_rows=len(heads),
        )
        return y.reshape(len(x), -1)

    def norm(self, x: Tensor, w: Tensor, eps: float) -> Tensor:
        return norm(x, w, eps)

    def add_norm(
        self, x: Tensor, y: Tensor, w: Tensor, eps: float, readers: tuple[Matrix | Stack, ...]
    ) -> tuple[Tensor, Tensor]:
        """See `heddle.extensions.torch.fused_ops.FusedOps`."""
        kind = _kind_for(readers)
        found = add_norm(x, y, w, eps, kind)
        self._taken = found.norm, {kind: found.operand}
        return found.total, found.norm

    def norm_heads(self, x: Tensor, w: Tensor, eps: float, heads: int) -> Tensor:
        return norm(x, w, eps, heads)

    def rope(self, x: Tensor, positions: Tensor, spec: RopeSpec, heads: int) -> Tensor:
        table, rows = self._turned(positions, spec)
        return rotate(x, rows, table, spec, heads)

    def _table(self, positions: Tensor, spec: RopeSpec) -> Tensor:
        return self._rotations.table(spec, self._layout.splits * SPLIT)

    def roped_attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        layer: int,
        spec: AttentionSpec,
        sinks: Tensor | None,
        rope: RopeSpec,
    ) -> Tensor:
        """See `heddle.extensions.torch.fused_ops.FusedOps`."""
        if self._has_runs(spec.runs):
            q = self.rope(q, positions, rope, spec.heads)
            k = self.rope(k, positions, rope, spec.kv_heads)
            return self.attend(q, k, v, layer, spec, sinks)
        group, _ = self._pages.places[layer]
        keys, values = self._pages.parts(layer)
        table, rows = self._turned(positions, rope)
        asked = rotate_and_store(
            q,
            k,
            v,
            rows,
            table,
            rope,
            spec.heads,
            spec.kv_heads,
            (keys, values),
            self._layout.stored[group],
        )
        return self._attended(asked, layer, attention_shape(spec), sinks)

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        return gated(gate, up, activation)

    def gated_for(
        self, gate: Tensor, up: Tensor, activation: str, readers: tuple[Matrix | Stack, ...]
    ) -> Tensor:
        """See `heddle.extensions.torch.fused_ops.FusedOps`."""
        kind = _kind_for(readers)
        y, own = gated_operand(gate, up, activation, kind)
        self._taken = y, {kind: own}
        return y

    def activate(self, x: Tensor, activation: str) -> Tensor:
        return activate(x, activation)

    def causal_conv(
        self, x: Tensor, filters: Filters, place: StatePlace, activation: str
    ) -> Tensor:
        return convolve(x, filters, self._states, place, self._runs, activation)

    def linear_attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        strength: Tensor,
        place: StatePlace,
        spec: LinearAttentionSpec,
        skip: Tensor | None = None,
    ) -> Tensor:
        self._check()
        return linear_attend(q, k, v, decay, strength, skip, self._states, place, spec, self._runs)

    def selective_scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Tensor,
        rates: Tensor,
        skip: Tensor,
        place: StatePlace,
    ) -> Tensor:
        self._check()
        return scan(q, k, v, step, rates, skip, self._states, place, self._runs)

    def experts_share(
        self,
        x: Tensor,
        logits: Tensor,
        weights: ExpertWeights[Stack],
        spec: ExpertSpec,
        first: int,
    ) -> Tensor:
        self._check()
        chosen, factors = choose(logits, spec, self._constants)
        if spec.weighs_input:  # of one expert a token; see ExpertSpec
            x, factors = x * factors, torch.ones_like(factors)
        choices = sort_choices(chosen, first, weights.up.count, self._layout.used, of=spec.count)

        def products(x: Tensor, tiles: Tiles, *stacks: Stack) -> tuple[Tensor, ...]:
            return multiply_each(
                self._operand(x, stacks[0].whole.type),
                [stack.whole for stack in stacks],
                tiles=tiles,
                rows=stacks[0].out_features,
                y_rows=choices.size,
            )

        gate, up = weights.gate, weights.up
        if gate is None:
            (hidden,) = products(x, choices.of_tokens, up)
            hidden = self.activate(hidden, spec.activation)
        else:
            if _joint(gate) == _joint(up):
                gates, ups = products(x, choices.of_tokens, gate, up)
            else:
                (gates,) = products(x, choices.of_tokens, gate)
                (ups,) = products(x, choices.of_tokens, up)
            hidden = self.gated_for(gates, ups, spec.activation, (weights.down,))
        (down,) = products(hidden, choices.of_slots, weights.down)
        return combine(choices, factors, down)

    def _store(self, layer: int, k: Tensor, v: Tensor) -> None:
        group, _ = self._pages.places[layer]
        store(self._pages.parts(layer), self._layout.stored[group], k, v)

    def _attended(
        self, q: Tensor | Operand, layer: int, shape: Shape, sinks: Tensor | None
    ) -> Tensor:
        by_run = self._has_runs(shape.runs)
        if not isinstance(q, Operand) and (shape.bias is not None or by_run):
            found = super()._attended(q, layer, shape, sinks)
            if not by_run or not shape.causal:
                return found
        self._check()
        parts = self._pages.parts(layer)
        group, _ = self._pages.places[layer]
        alone = attend(q, parts[0], parts[-1], self._layout, group, shape, sinks)
        if not by_run:
            return alone
        # Tokens before a picture have the bits that they have without one.
        assert self._layout.sight is not None, "it has the runs"
        return torch.where(self._layout.sight.joint[:, None], found, alone)

    def _has_runs(self, kind: int) -> bool:
        """Whether tokens of this step see runs of this kind, for which there are no kernels."""
        sight = self._layout.sight
        return kind > 0 and sight is not None and sight.seen is not None

    @cached_property
    def _runs(self) -> Runs:
        return runs_of(self._layout, self._states)

    def _operand(self, x: Tensor, kind: TensorType) -> Operand:
        """x as an operand. Several matrices read the same x one after the other."""
        if self._taken is None or self._taken[0] is not x:
            self._taken = x, {}
        taken, own = self._taken[1], operand_type(kind)
        if own not in taken:
            taken[own] = operand(x, own)
        return taken[own]


def _joint(stack: Stack) -> Hashable:
    """`joint` of a stack's matrices."""
    return joint(stack.whole, stack.out_features)


def _kind_for(readers: tuple[Matrix | Stack, ...]) -> torch.dtype:
    """The type of the operand that these matrices read; float32 if they differ."""
    stored = (reader.whole if isinstance(reader, Stack) else reader for reader in readers)
    kinds = {operand_type(one.type) for one in stored}
    rounded = kinds - {torch.float32}
    return rounded.pop() if len(rounded) == 1 else torch.float32
