"""The operations of a forward pass on torch tensors; see `heddle.models.ops.Ops`.

Arrays are float32 (T, n), and T is a multiple of `TILE`. Every operation computes a token in the
same way whatever the other tokens are: elementwise with functions that round alike everywhere
(`functions.py`), or in calls of fixed shapes (`tiles.py`, `attention.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.extensions.torch import functions
from heddle.extensions.torch.adapters import Adapted, with_changes
from heddle.extensions.torch.attention import Shape, attend
from heddle.extensions.torch.constants import Constants
from heddle.extensions.torch.linear_blocks import Inputs, State, attend_run
from heddle.extensions.torch.open_blocks import BLOCK, with_rows
from heddle.extensions.torch.recurrence import Scanned, convolve, rwkv_run, scan
from heddle.extensions.torch.routing import choose
from heddle.extensions.torch.tiles import TILE, multiply, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from heddle.executors.graph.recording import Node
    from heddle.extensions.torch.cache import PagedMemory
    from heddle.extensions.torch.collective import Collective
    from heddle.extensions.torch.layout import Layout
    from heddle.extensions.torch.rotation import Rotations
    from heddle.extensions.torch.states import FixedStates
    from heddle.extensions.torch.weights import Filters, Matrix, Stack
    from heddle.models.ops import (
        AttentionSpec,
        ExpertSpec,
        ExpertWeights,
        LatentSpec,
        LinearAttentionSpec,
        Operation,
        RopeSpec,
        StatePlace,
    )
    from heddle.step import Chunk


def attention_shape(spec: AttentionSpec) -> Shape:
    """The calls of grouped-query attention."""
    return Shape(
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        spec.head_dim,
        spec.scale,
        spec.window,
        spec.soft_cap,
        spec.causal,
        spec.bias,
        spec.aligned,
        spec.runs,
    )


def latent_shape(spec: LatentSpec) -> Shape:
    """The calls of latent attention: one head of keys, whose first elements are the values."""
    return Shape(spec.heads, 1, spec.rank + spec.rope_dim, spec.rank, spec.scale)


def _held(tokens: Tensor, rows: int) -> Tensor:
    """The row of each token in a table of so many rows; the first for tokens that it lacks."""
    return torch.where(tokens < rows, tokens, 0)


class TorchOps:
    """The operations of one step.

    Attributes:
        joins: whether it has the joined operations of `heddle.extensions.torch.fused_ops`.
        uses_matmuls_of_torch: whether the load checks them; see `tiles.py`.
        most_read: most rows whose logits or states are computed at once, a multiple of `TILE`.
    """

    joins = False
    uses_matmuls_of_torch = True
    most_read = TILE

    def __init__(
        self,
        layout: Layout,
        pages: PagedMemory,
        states: FixedStates,
        rotations: Rotations,
        check: Callable[[], None],
        collective: Collective | None = None,
        constants: Constants | None = None,
    ) -> None:
        """`check` is called before each matmul; an exception of it ends the step.

        `collective` connects the ranks of a model that is divided. Steps share their `constants`.
        """
        self._layout = layout
        self._pages = pages
        self._states = states
        self._rotations = rotations
        self._check = check
        self._collective = collective
        self._constants = constants or Constants()
        self._turns: dict[RopeSpec, tuple[Tensor, Tensor]] = {}
        self._all_adapted = Adapted(layout.runs, layout.device)
        self._adapted = self._all_adapted.rows

    @staticmethod
    def obstacle(node: Node) -> str:
        """Why a step with this node cannot be recorded; empty: it can."""
        return "operations on torch tensors wait for their results"

    @staticmethod
    def joint(w: Matrix) -> Hashable:
        """Is equal for matrices that can be multiplied at once by `FusedOps.linear_each`."""
        return id(w)

    def embed(self, table: Matrix, indices: Tensor, first: int = 0) -> Tensor:
        return table.values(_held(indices + first, table.out_features))

    def embed_segments(self, table: Matrix, tokens: Tensor, separator: int) -> Tensor:
        segments = torch.zeros_like(tokens)
        for rows, _ in self._layout.runs:
            is_separator = (tokens[rows] == separator).long()
            segments[rows] = is_separator.cumsum(0) - is_separator
        return table.values(segments.clamp(max=table.out_features - 1))

    def embed_previous(self, table: Matrix, tokens: Tensor, start: int) -> Tensor:
        before = torch.full_like(tokens, start)
        for rows, _ in self._layout.runs:
            before[rows][1:] = tokens[rows][:-1]
        return self.embed(table, before)

    def mean_rows(self, x: Tensor) -> Tensor:
        means = torch.zeros_like(x)
        for rows, _ in self._layout.runs:
            total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
            for row in x[rows].double():  # in the order of the rows, whatever a device prefers
                total = total + row
            means[rows] = (total / len(x[rows])).float()
        return means

    def read(self, rows: Sequence[int]) -> None:
        """From here on, arrays have only these rows of the step, and then padding."""
        self._adapted = self._all_adapted.read(rows)

    def linear(self, x: Tensor, w: Matrix) -> Tensor:
        self._check()
        return self._changed(x, self._product(x, w), w)

    def _product(self, x: Tensor, w: Matrix) -> Tensor:
        y = multiply(x, w.panels(), w.out_features)
        return y if w.bias is None else y + w.bias

    def _changed(self, x: Tensor, y: Tensor, w: Matrix) -> Tensor:
        """The product y of x and w with the changes of adapters."""
        return with_changes(x, y, w.name, self._adapted, self._product) if self._adapted else y

    def norm(self, x: Tensor, w: Tensor, eps: float) -> Tensor:
        mean_square = functions.total(x * x) * (1.0 / x.shape[-1])
        return x / (mean_square + eps).sqrt() * w

    def layer_norm(self, x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
        mean = functions.total(x) * (1.0 / x.shape[-1])
        return self.norm(x - mean, w, eps) + b

    def norm_heads(self, x: Tensor, w: Tensor, eps: float, heads: int) -> Tensor:
        by_head = x.reshape(len(x), heads, -1)
        own = len(w) != by_head.shape[-1]
        return self.norm(by_head, w.reshape(heads, -1) if own else w, eps).reshape(x.shape)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return functions.tanh(x * (1 / cap)) * cap

    def rope(self, x: Tensor, positions: Tensor, spec: RopeSpec, heads: int) -> Tensor:
        table, rows = self._turned(positions, spec)
        cos, sin = table[rows][:, :, None].unbind(1)
        half, first = spec.dim // 2, spec.first
        y = x.reshape(len(x), heads, -1).clone()
        turned = y[..., first : first + spec.dim]
        if spec.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned[..., :half], turned[..., half:]
        rotated = a * cos - b * sin, a * sin + b * cos
        a.copy_(rotated[0])
        b.copy_(rotated[1])
        return y.reshape(x.shape)

    def _turned(self, positions: Tensor, spec: RopeSpec) -> tuple[Tensor, Tensor]:
        """Cosines and sines (n, 2, dim / 2), and the row (T,) of each token."""
        sight = self._layout.sight
        if not spec.axes or sight is None or sight.places is None:
            return self._table(positions, spec), positions
        if spec not in self._turns:  # the layers of a step share it
            table = self._rotations.table(spec, sight.last_place + 1)
            axes = self._constants.indices(spec.axes, table.device)
            pairs = torch.arange(len(axes), device=table.device)
            found = [part[sight.places[:, axes], pairs] for part in table.unbind(1)]
            turns = torch.stack(found, 1)
            self._turns[spec] = turns, torch.arange(len(turns), device=table.device)
        return self._turns[spec]

    def _table(self, positions: Tensor, spec: RopeSpec) -> Tensor:
        """Cosines and sines (n, 2, dim / 2) of the positions from 0 on to the last one."""
        return self._rotations.table(spec, int(positions.max()) + 1)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        spec: AttentionSpec,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self._store(layer, k, v)
        return self._attended(q, layer, attention_shape(spec), sinks)

    def attend_stored(self, q: Tensor, layer: int, spec: AttentionSpec) -> Tensor:
        return self._attended(q, layer, attention_shape(spec), None)

    def latent_attend(
        self, q_latent: Tensor, q: Tensor, latent: Tensor, key: Tensor, layer: int, spec: LatentSpec
    ) -> Tensor:
        self._store(layer, latent, key)
        turned = q.reshape(len(q), spec.heads, -1)[..., -spec.rope_dim :]
        queries = torch.cat([q_latent.reshape(len(q), spec.heads, -1), turned], -1)
        return self._attended(queries.reshape(len(q), -1), layer, latent_shape(spec), None)

    def head_linear(self, x: Tensor, w: Stack) -> Tensor:
        self._check()
        heads = x.reshape(len(x), w.count, -1)[..., : w.in_features]
        parts = [
            multiply(heads[:, index].contiguous(), matrix.panels(), w.out_features)
            for index, matrix in enumerate(w.matrices)
        ]
        return torch.cat(parts, -1)

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        return functions.gated(gate, up, activation)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        return functions.activated(x, activation)

    def causal_conv(
        self, x: Tensor, filters: Filters, place: StatePlace, activation: str
    ) -> Tensor:
        y = torch.zeros_like(x)
        for rows, chunk in self._layout.runs:
            certain = len(chunk.tokens) - chunk.uncertain
            state = self._states.part(chunk, place)
            y[rows], kept, last = convolve(x[rows], filters, state, certain)
            self._remember(chunk, place, kept, last)
        return functions.silu(y) if activation == "silu" else y

    def step_size(self, x: Tensor, bias: Tensor, least: float, most: float) -> Tensor:
        return functions.softplus(x + bias).clamp(least, most)

    def decay(self, x: Tensor, rates: Tensor) -> Tensor:
        return functions.exp(x * rates.repeat_interleave(x.shape[1] // len(rates)))

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
        y, inputs, factors = torch.zeros_like(v), Inputs(q, k, v, decay, strength), decay.shape[1]
        own = with_rows(place, spec, factors)
        for rows, chunk in self._layout.runs:
            state, kept = (
                State.within(self._states.part(chunk, own, certain=certain), spec, factors)
                for certain in (False, True)
            )
            y[rows] = attend_run(
                inputs.part(rows),
                state,
                kept if chunk.uncertain else None,
                chunk.start % BLOCK,
                len(chunk.tokens) - chunk.uncertain,
                spec,
            )
        if skip is None:
            return y
        by_head = y.reshape(len(v), spec.heads, -1) + skip[:, None] * v.reshape(
            len(v), spec.heads, -1
        )
        return by_head.reshape(v.shape)

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
        y, by_state = skip * v, rates.reshape(v.shape[1], -1).T
        for rows, chunk in self._layout.runs:
            certain = len(chunk.tokens) - chunk.uncertain
            inputs = Scanned(q[rows], k[rows], v[rows], step[rows])
            found, kept, last = scan(inputs, by_state, self._states.part(chunk, place), certain)
            y[rows] += found
            self._remember(chunk, place, kept, last)
        return y

    def token_shift(self, x: Tensor, shares: Tensor, parts: int, place: StatePlace) -> Tensor:
        y = x.new_zeros(len(x), parts, x.shape[1])
        mixes = shares.reshape(parts, -1)
        for rows, chunk in self._layout.runs:
            certain = len(chunk.tokens) - chunk.uncertain
            own = x[rows]
            past = torch.cat([self._states.part(chunk, place)[None], own])
            y[rows] = own[:, None] + mixes * (past[:-1] - own)[:, None]
            self._remember(chunk, place, past[certain], past[-1])
        return y.flatten(1)

    def rwkv_attend(
        self,
        inputs: tuple[Tensor, ...],
        weights: tuple[Tensor, ...],
        place: StatePlace,
        eps: float,
    ) -> Tensor:
        y = torch.zeros_like(inputs[0])
        for rows, chunk in self._layout.runs:
            self._check()
            y[rows], kept, last = rwkv_run(
                tuple(one[rows] for one in inputs),
                weights,
                self._states.part(chunk, place),
                len(chunk.tokens) - chunk.uncertain,
                eps,
            )
            self._remember(chunk, place, kept, last)
        return y

    def experts(
        self, x: Tensor, logits: Tensor, weights: ExpertWeights[Stack], spec: ExpertSpec
    ) -> Tensor:
        return self.experts_share(x, logits, weights, spec, 0)

    def experts_share(
        self,
        x: Tensor,
        logits: Tensor,
        weights: ExpertWeights[Stack],
        spec: ExpertSpec,
        first: int,
    ) -> Tensor:
        """Experts in the order of their index, each for the tokens that chose it."""
        chosen, factors = choose(logits, spec, self._constants)
        chosen = chosen - first
        own = range(weights.up.count)
        y = torch.zeros_like(x)
        for expert in sorted({*chosen[: self._layout.count].flatten().tolist()}):
            if expert not in own:
                continue
            tokens, place = (chosen == expert).nonzero(as_tuple=True)
            rows = tokens.new_zeros(padded(len(tokens)))
            rows[: len(tokens)] = tokens
            given, weight = x[rows], factors[tokens, place][:, None]
            if spec.weighs_input:
                given[: len(tokens)] *= weight
                weight = torch.ones_like(weight)
            hidden = self.linear(given, weights.up.matrices[expert])
            if weights.gate is None:
                hidden = self.activate(hidden, spec.activation)
            else:
                gate = self.linear(given, weights.gate.matrices[expert])
                hidden = functions.gated(gate, hidden, spec.activation)
            down = self.linear(hidden, weights.down.matrices[expert])[: len(tokens)]
            y[tokens] = y[tokens] + weight * down
        return y

    def gate_rows(self, x: Tensor, gate: Tensor, activation: str = "sigmoid") -> Tensor:
        factors = functions.sigmoid(gate) if activation == "sigmoid" else gate
        by_gate = x.reshape(*gate.shape, -1) * factors[..., None]
        return by_gate.reshape(x.shape)

    def mix_heads(self, x: Tensor, factors: Tensor, heads: int) -> Tensor:
        by_head, by_sum = x.reshape(len(x), heads, -1), factors.reshape(len(x), -1, heads)
        return functions.total(by_sum[..., None] * by_head[:, None], 2).reshape(len(x), -1)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def take_rows(self, x: Tensor, rows: Tensor, count: int = 1) -> Tensor:
        if count == 1:
            return x[rows]
        numbers = rows[:, None] + torch.arange(count, device=rows.device)
        return x[numbers].reshape(len(rows), -1)

    def see(self, x: Tensor, first: int = 0, *, adds: bool = False) -> Tensor:
        sight, width = self._layout.sight, x.shape[1]
        if sight is None or not sight.rows:
            return x
        y = x.clone()
        for tokens, rows in sight.rows:
            own = rows[:, first : first + width]
            y[tokens] = y[tokens] + own if adds else own
        return y

    def take_columns(self, x: Tensor, first: int, width: int, heads: int = 1) -> Tensor:
        by_head = x.reshape(len(x), heads, -1)[..., first : first + width]
        lacking = width - by_head.shape[-1]
        return torch.nn.functional.pad(by_head, (0, lacking)).reshape(len(x), -1).contiguous()

    def apply(self, operation: Operation, *inputs: Tensor) -> Tensor:
        raise NotImplementedError("`operations.served` refuses models with such operations")

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], -1)

    def embed_share(self, table: Matrix, tokens: Tensor, first: int, rows: int) -> Tensor:
        own = _held(tokens, rows) - first
        held = (own >= 0) & (own < table.out_features)
        return torch.where(held[:, None], table.values(torch.where(held, own, 0)), 0.0)

    def sum_ranks(self, x: Tensor) -> Tensor:
        first, *others = self._gathered(x)
        for term in others:
            first = first + term
        return first

    def gather_ranks(self, x: Tensor, widths: Sequence[int], order: Sequence[int]) -> Tensor:
        padding = max(widths) - x.shape[1]
        parts = self._gathered(torch.nn.functional.pad(x, (0, padding)))
        joined = torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)
        return self.pick_columns(joined, order) if order else joined

    def pick_columns(self, x: Tensor, columns: Sequence[int]) -> Tensor:
        return x[:, self._constants.indices(tuple(columns), x.device)]

    def _gathered(self, x: Tensor) -> list[Tensor]:
        assert self._collective is not None, "the graph of one rank has no collectives"
        return self._collective.gather(x)

    def _store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of the step's tokens to their pages.

        If values are a part of the keys, the pages keep k and v joined.
        """
        group, _ = self._pages.places[layer]
        parts, places = self._pages.parts(layer), self._layout.stored[group]
        vectors = (k, v) if len(parts) == 2 else (torch.cat([k, v], -1),)
        for stored, rows in zip(parts, vectors, strict=True):
            stored.store(places, rows[: self._layout.count])

    def _remember(self, chunk: Chunk, place: StatePlace, kept: Tensor, last: Tensor) -> None:
        """Write the states after the certain tokens of a chunk, and after all of them."""
        if chunk.uncertain:
            self._states.part(chunk, place, certain=True).copy_(kept)
        self._states.part(chunk, place).copy_(last)

    def _attended(self, q: Tensor, layer: int, shape: Shape, sinks: Tensor | None) -> Tensor:
        self._check()
        parts = self._pages.parts(layer)
        group, _ = self._pages.places[layer]
        return attend(q, parts[0], parts[-1], self._layout, group, shape, sinks)
