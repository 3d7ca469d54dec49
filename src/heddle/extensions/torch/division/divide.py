"""Divides a recorded forward pass among ranks (tensor parallelism; Shoeybi et al. 2019,
arXiv:1909.08053).

No model says how it is divided. It follows from the graph: attention and recurrences are divided by
heads, so matrices before them by rows and matrices after them by columns; feed-forward layers by
their inner width, experts by their inner width or by expert, embedding and output matrix by tokens
of the vocabulary. Every rank computes the rest in full, such as norms and routers.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from heddle.errors import ConfigError
from heddle.executors.graph import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.executors.graph.forward import Forward
    from heddle.executors.graph.recording import Node
    from heddle.extensions.torch.division.claims import Indices
    from heddle.models.ops import LinearAttentionSpec

Parts: TypeAlias = "list[Indices]"
"""The columns of a value that each rank has, sorted."""

ELEMENTWISE = (recording.Scale, recording.SoftCap, recording.Activate, recording.Gated)
"""Operations on each column alone, whose inputs and result have the same columns."""

_BY_COLUMN = (recording.CausalConv, recording.StepSize, recording.Decay)
"""As `ELEMENTWISE`, with weights or a state of each column."""

_BY_HEAD = (recording.NormHeads, recording.Rope)
"""Operations on each head alone."""

_OF_ANY_COLUMNS = (
    *ELEMENTWISE,
    *_BY_COLUMN,
    *_BY_HEAD,
    recording.Linear,
    recording.HeadLinear,
    recording.TakeColumns,
    recording.GateRows,
)
"""Operations that compute some columns of their result without the others."""


class Division:
    """How `ranks` ranks hold each value of a forward pass.

    Attributes:
        ranks: number of ranks.
        parts: for each value whose columns are divided, those of each rank.
        terms: the values of which each rank has a term. Their sum is the value.
        inner: for each matrix that is cut by columns, and for each mixture of experts that is cut
            by inner width, the columns of each rank.
    """

    def __init__(self, forward: Forward, ranks: int) -> None:
        """
        Raises:
            ConfigError: `ranks` does not divide the heads, or there are too few blocks of columns.
        """
        self.forward = forward
        self.ranks = ranks
        self.parts: dict[Node, Parts] = {}
        self.terms: set[Node] = set()
        self.inner: dict[Node, Parts] = {}
        self._wanted: dict[Node, list[Parts | None]] = {}
        # A rank loads a table once, whole or cut. embed_previous may read any row of it.
        self._whole_tables = {
            node.table for node in forward.nodes if isinstance(node, recording.EmbedPrevious)
        }
        for node in forward.nodes:
            self._decide(node)
        self._divide_logits()
        for node in reversed(forward.nodes):
            self._settle(node)
            self._want_inputs(node)

    # --- what the operations give, from the first to the last

    def _decide(self, node: Node) -> None:
        """Note how an operation divides its result by itself."""
        match node:
            case recording.Attend(spec=spec) if spec.bias is not None:
                raise ConfigError(
                    "a model whose scores of attention have a bias by distance cannot be divided:"
                    " the bias is that of all heads. Set ranks to 1",
                    param="ranks",
                )
            case recording.Attend(spec=spec):
                self._check_heads(spec.heads, spec.kv_heads, "query", node.layer)
                self.parts[node] = self._even(spec.heads, node.width)
            case recording.LatentAttend(spec=latent):
                self._check_heads(latent.heads, latent.heads, "query", node.layer)
                self.parts[node] = self._even(latent.heads, node.width)
            case recording.LinearAttend(spec=linear):
                self._check_heads(linear.heads, linear.key_heads, "value", node.place.layer)
                self.parts[node] = columns_of(self.value_heads(linear), node.width // linear.heads)
            case recording.Linear():
                self._decide_linear(node)
            case recording.Experts():
                self.terms.add(node)
                self._divide_experts(node)
            case recording.Embed(table=table) if node.inputs[0] is self.forward.inputs.tokens:
                if table not in self._whole_tables:
                    self.terms.add(node)
            case recording.Add() | recording.GateRows() | recording.Scale() if self._adds(node):
                self.terms.add(node)
            case recording.HeadLinear(weight=weight):
                given = self._heads_of(node.inputs[0], weight.count)
                if given is not None:
                    self.parts[node] = columns_of(given, weight.out_features)
            case recording.NormHeads(heads=heads):
                given = self._heads_of(node.inputs[0], heads)
                if given is not None:
                    self.parts[node] = self.parts[node.inputs[0]]
            case _ if isinstance(node, (*ELEMENTWISE, recording.GateRows)):
                divided = [self.parts[one] for one in node.inputs if one in self.parts]
                if divided:
                    self.parts[node] = divided[0]

    def _decide_linear(self, node: recording.Linear) -> None:
        (x,) = node.inputs
        block = _block(node.weight)
        parts = self.parts.get(x)
        if parts is None and isinstance(x, recording.Gated | recording.Activate):
            parts = self._inner_parts(x.width, block, even=_keeps_state(x), what=node.weight)
        if parts is not None and _in_blocks(parts, block):
            self.inner[node] = parts
            self.terms.add(node)

    def _adds(self, node: Node) -> bool:
        """Whether the operation may be done for each term. A gate is the same for all terms."""
        inputs = node.inputs if isinstance(node, recording.Add) else node.inputs[:1]
        return all(one in self.terms for one in inputs)

    def _divide_experts(self, node: recording.Experts) -> None:
        """Divide experts by inner width where blocks allow it, else by expert."""
        down = node.weights.down
        block = _block(down)
        if down.in_features // block >= self.ranks:
            units = down.in_features // block
            self.inner[node] = [
                _indices(own, block) for own in np.array_split(np.arange(units), self.ranks)
            ]
        elif node.spec.count < self.ranks:
            raise ConfigError(
                f"tensor_parallel {self.ranks} divides neither the {down.in_features} inner"
                f" elements of an expert in blocks of {block}, nor the {node.spec.count} experts;"
                " use fewer ranks",
                param="tensor_parallel",
            )

    def experts_of(self, rank: int, count: int) -> range:
        """The experts of a rank where experts are divided by expert."""
        return _share(rank, self.ranks, count)

    def rows_of(self, rank: int, rows: int) -> range:
        """The rows of a rank of an embedding or output matrix."""
        return _share(rank, self.ranks, rows)

    def _divide_logits(self) -> None:
        """Divide logits by token of the vocabulary."""
        node = self.forward.logits
        chain = [node]
        while isinstance(node, recording.Scale | recording.SoftCap):
            (node,) = node.inputs
            chain.append(node)
        if isinstance(node, recording.Linear) and node not in self.terms:
            parts = [np.asarray(self.rows_of(rank, node.width)) for rank in range(self.ranks)]
            self.parts.update(dict.fromkeys(chain, parts))

    # --- what the readers want, from the last to the first

    def _settle(self, node: Node) -> None:
        """Divide a value that may have any columns as its readers want it."""
        if node in self.parts or node in self.terms or not isinstance(node, _OF_ANY_COLUMNS):
            return
        if isinstance(node, recording.TakeColumns) and node.width > node.inputs[0].width:
            return  # zeros follow the columns of each head
        wanted = self._wanted.get(node, [])
        if not wanted or node is self.forward.states:
            return
        parts = [one for one in wanted if one is not None]
        if len(parts) < len(wanted):
            return
        union = [reduce(np.union1d, of_rank) for of_rank in zip(*parts, strict=True)]
        heads = getattr(node, "heads", 0) if isinstance(node, _BY_HEAD) else 0
        if isinstance(node, recording.HeadLinear):
            heads = node.weight.count
        if not heads or _in_blocks(union, node.width // heads):
            self.parts[node] = union

    def _want_inputs(self, node: Node) -> None:
        """Note the columns that an operation needs of its inputs."""
        parts = self.parts.get(node)
        wants: Sequence[Parts | None] = [None] * len(node.inputs)
        match node:
            case recording.Linear():
                wants = [self.inner.get(node)]
            case _ if parts is None:
                pass
            case recording.Attend() | recording.LatentAttend() | recording.LinearAttend():
                wants = self.attention_inputs(node)
            case recording.HeadLinear(weight=weight):
                heads = [np.unique(own // weight.out_features) for own in parts]
                wants = [columns_of(heads, node.inputs[0].width // weight.count)]
            case recording.TakeColumns(first=first, heads=taken):
                size, stride = node.width // taken, node.inputs[0].width // taken
                wants = [[own // size * stride + first + own % size for own in parts]]
            case recording.GateRows() | recording.Rope():
                wants = [parts, None]
            case _:
                wants = [parts] * len(node.inputs)
        for source, want in zip(node.inputs, wants, strict=True):
            self._wanted.setdefault(source, []).append(want)

    def attention_inputs(self, node: Node) -> Sequence[Parts | None]:
        """The columns that attention or a recurrence needs of its inputs."""
        match node:
            case recording.Attend(spec=spec):
                kv = columns_of(self.kv_heads(spec.kv_heads), spec.head_dim)
                return [self.parts[node], kv, kv][: len(node.inputs)]
            case recording.LatentAttend(spec=latent):
                queries = self._even(latent.heads, node.inputs[1].width)
                return [self.parts[node], queries, None, None]
            case recording.LinearAttend(spec=linear):
                heads = self.value_heads(linear)
                keys = columns_of(self.key_heads(linear), linear.key_dim)
                decay, strength = (
                    columns_of(heads, one.width // linear.heads) for one in node.inputs[3:]
                )
                return [keys, keys, self.parts[node], decay, strength]
        raise TypeError(f"{type(node).__name__} has no heads")

    # --- heads

    def kv_heads(self, count: int) -> Parts:
        """The heads of keys and values of each rank. Several ranks may have the same one."""
        if count >= self.ranks:
            return self._even(count, count)
        return [np.array([rank * count // self.ranks]) for rank in range(self.ranks)]

    def key_heads(self, spec: LinearAttentionSpec) -> Parts:
        """The heads of queries and keys of each rank."""
        return self.kv_heads(spec.key_heads)

    def value_heads(self, spec: LinearAttentionSpec) -> Parts:
        """The heads of values of each rank: those that its key heads serve."""
        if not spec.tiled:
            return self._even(spec.heads, spec.heads)
        every = np.arange(spec.heads)
        served = [every[np.isin(every % spec.key_heads, heads)] for heads in self.key_heads(spec)]
        of_key = max(1, self.ranks // spec.key_heads)  # ranks that share a key head
        return [np.array_split(own, of_key)[rank % of_key] for rank, own in enumerate(served)]

    def _heads_of(self, node: Node, count: int) -> Parts | None:
        """The heads of each rank, if the value is divided into whole ones."""
        parts, size = self.parts.get(node), node.width // count
        if parts is None or not _in_blocks(parts, size):
            return None
        return [np.unique(own // size) for own in parts]

    def _even(self, count: int, width: int) -> Parts:
        """Equal numbers of consecutive heads, as columns of a value."""
        own = np.array_split(np.arange(count), self.ranks)
        return columns_of(own, width // count)

    def _check_heads(self, heads: int, shared: int, what: str, layer: int) -> None:
        if heads % self.ranks or (shared % self.ranks and self.ranks % shared):
            fitting = [
                n
                for n in range(1, heads + 1)
                if not heads % n and (not shared % n or not n % shared)
            ]
            raise ConfigError(
                f"tensor_parallel {self.ranks} does not divide the {heads} {what} heads with"
                f" {shared} key heads of layer {layer}; use one of"
                f" {', '.join(map(str, fitting))}",
                param="tensor_parallel",
            )

    def _inner_parts(self, width: int, block: int, *, even: bool, what: object) -> Parts | None:
        """Consecutive blocks for each rank; None if a state needs equal numbers of them."""
        units = width // block
        if even and units % self.ranks:
            return None
        if units < self.ranks:
            name = getattr(what, "name", "a matrix")
            raise ConfigError(
                f"tensor_parallel {self.ranks} does not divide {name}: its {width} columns are"
                f" {units} blocks of {block}; use at most {units} ranks",
                param="tensor_parallel",
            )
        return [_indices(own, block) for own in np.array_split(np.arange(units), self.ranks)]


def columns_of(heads: Iterable[Indices], size: int) -> Parts:
    """The columns of heads with `size` columns each."""
    return [_indices(own, size) for own in heads]


def _indices(units: Indices, size: int) -> Indices:
    return (units[:, None] * size + np.arange(size)).ravel()


def _in_blocks(parts: Parts, block: int) -> bool:
    """Whether the parts consist of whole blocks of columns."""
    return all(
        len(own) % block == 0 and np.array_equal(own, _indices(np.unique(own // block), block))
        for own in parts
    )


def _block(weight: object) -> int:
    block: int = getattr(weight, "block", 1)
    return block


def _share(rank: int, ranks: int, count: int) -> range:
    """Consecutive numbers below `count`; the first ranks have one more if they do not divide it."""
    each, more = divmod(count, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def _keeps_state(node: Node) -> bool:
    """Whether a value depends on a state of its columns, through operations on columns."""
    if isinstance(node, recording.CausalConv):
        return True
    if isinstance(node, (*ELEMENTWISE, *_BY_COLUMN)):
        return any(map(_keeps_state, node.inputs))
    return False
