"""A recorded model on a device, with its pages: computes hidden states and logits of a step."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from heddle.executors.graph.recording import Attend, LatentAttend, Rope
from heddle.extensions.torch.adapters import make_adapter
from heddle.extensions.torch.agreement import Agreement, Attempt, Exchanges
from heddle.extensions.torch.cache import PagedMemory
from heddle.extensions.torch.chunk_rows import logit_rows, rows_of, state_rows
from heddle.extensions.torch.collective import Compared
from heddle.extensions.torch.constants import Constants
from heddle.extensions.torch.fusion import fused
from heddle.extensions.torch.graphs import Graphs, GraphStep, buckets
from heddle.extensions.torch.layout import SPLIT, Layout, Spare
from heddle.extensions.torch.made_nodes import GatherRanks, SumRanks
from heddle.extensions.torch.operations import operations
from heddle.extensions.torch.ops import attention_shape, latent_shape
from heddle.extensions.torch.rotation import Rotations
from heddle.extensions.torch.stages import stages
from heddle.extensions.torch.staging import sent
from heddle.extensions.torch.states import FixedStates
from heddle.extensions.torch.tiles import padded
from heddle.extensions.torch.together import Alone, Together
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from heddle.executors.graph.forward import Forward
    from heddle.executors.graph.recording import Node
    from heddle.extensions.torch.adapters import TorchAdapter
    from heddle.extensions.torch.agreement import Value
    from heddle.extensions.torch.collective import Collective
    from heddle.extensions.torch.graphs import Capture, Graph
    from heddle.extensions.torch.ops import TorchOps
    from heddle.extensions.torch.stages import Stage
    from heddle.extensions.torch.tiles import RowsTile
    from heddle.state import StateMemory
    from heddle.step import StepPlan
    from heddle.weights.low_rank import Change

    Values = dict[Node, torch.Tensor]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_COMPARED = 64
"""Columns of logits and states that the ranks compare."""


class Program:
    """The stages of a model's forward pass.

    Attributes:
        forward: the recorded graph.
        pages: keys and values.
        states: fixed-size states.
        compared: values that ranks compare, of the step that was begun last.
    """

    def __init__(
        self,
        forward: Forward,
        memory: StateMemory,
        kv_type: str,
        device: torch.device,
        collective: Collective | None = None,
    ) -> None:
        """`collective` connects the ranks of a model that is divided. They exchange in `attempt`.

        Raises:
            ConfigError: the device computes a query by its place in a tile.
        """
        self.forward = forward
        self._collective = collective
        self._agreement = None if collective is None else Agreement(collective, device)
        self._exchanges: Exchanges | None = None  # of the step that is asked for
        self.compared = Compared()
        self._device = device
        self._groups = 1 + len(memory.windows)
        self._rotations = Rotations(device)
        self._constants = Constants()
        self._graphs: Graphs | None = None
        self._graph: Graph | None = None  # of the step that is asked for
        self._operations = operations(device)
        joins, joint = self._operations.joins, self._operations.joint
        self._computed = fused(forward, joint) if joins else forward
        self._stages = stages(self._computed)
        if self._operations.uses_matmuls_of_torch:
            self._check_attention()
        self.pages = PagedMemory(kv_type, memory, device)
        self.states = FixedStates(memory, device)

    def make_adapter(self, changes: Mapping[str, Change]) -> TorchAdapter:
        """See `heddle.executors.adapting.AdaptingExecutor`."""
        checks = self._operations.uses_matmuls_of_torch
        return make_adapter(self.forward, changes, self._device, checks_matmuls=checks)

    def prepare(
        self,
        most_tokens: int,
        batch_tokens: int,
        context: int,
        capture: Capture | None,
        recorded: Collective | None = None,
    ) -> None:
        """Make ready to warm up. `capture` records the steps of at most `most_tokens` tokens.

        Steps with prompts have up to `batch_tokens`. Of several ranks, all do the same. They
        exchange by `recorded` in recordings.

        A model whose steps cannot be recorded runs without graphs.
        """
        obstacle = self._obstacle()
        if capture is not None and obstacle:
            _log.warning("decode steps run without CUDA graphs: %s", obstacle)
        for node in self.forward.nodes:
            if isinstance(node, Rope):  # a table that grows later would be at another address
                self._rotations.table(node.spec, -(-context // SPLIT) * SPLIT)
        self._graphs = Graphs(
            self._compute,
            self.forward.logits.width,
            Spare(self.pages.spare, self.states.spare),
            self._device,
            None if obstacle else capture,
            buckets(most_tokens, context),
            batch_tokens,
            self._together(recorded),
        )

    @property
    def warm_ups(self) -> int:
        """How many parts the warm-up has."""
        return 0 if self._graphs is None else self._graphs.warm_ups

    def warm_up(self, done: Callable[[int], None]) -> None:
        """Compile kernels and record graphs; see `Graphs.warm_up`."""
        if self._graphs is not None:
            self._graphs.warm_up(done)

    def attempt(self, plan: StepPlan, latest: torch.Tensor, ask: Callable[[], T]) -> Attempt[T]:
        """Call `ask`, which asks the device for the complete step of a plan.

        If a rank finds no memory, all ranks learn it at the end of the step, and nobody waits for
        that rank. `latest` is as in `begin`.

        Raises: as `Agreement.attempt`.
        """
        self.compared = Compared()
        self._graph = None if self._graphs is None else self._graphs.of(plan)
        if self._agreement is None or self._collective is None:
            return Attempt(ask(), None)
        self._exchanges = self._exchanged(plan, latest)
        return self._agreement.attempt(self._exchanges, ask)

    def begin(
        self, plan: StepPlan, check: Callable[[], None], latest: torch.Tensor | None = None
    ) -> Step | GraphStep:
        """Compute all tokens of a plan, and store their keys and values. `attempt` calls this.

        `latest` has the token that each slot sampled last (slots,), for unknown tokens. Of several
        ranks, rank 0 knows them, and the others give a tensor of the same size.

        `check` is called before each matmul, or once before a graph; an exception of it ends the
        step.

        Raises:
            ValueError: a chunk lacks hidden states that a prediction head reads.
        """
        graph = self._graph
        layout = self._lay_out(plan) if graph is None else graph.lay_out(plan)
        if latest is not None and _has_unknown(plan):
            if self._exchanges is not None:
                latest = self._exchanges.gather(latest)[0]
            layout.fill_unknown(latest)
        if graph is not None:
            check()
            step = graph.replayed(self._compare)
            if self._exchanges is not None:
                self._exchanges.note_replay()
            return step
        ops = self._ops(layout, check)
        return Step(self, ops, self._of_tokens(ops, layout))

    def begin_in_pieces(
        self, plan: StepPlan, check: Callable[[], None]
    ) -> Generator[None, None, Step]:
        """As `begin`, one operation at a time. Only for programs without ranks and graphs."""
        layout = self._lay_out(plan)
        ops, values = self._ops(layout, check), self._given(layout)
        yield from self._stages.tokens.pieces(ops, values)
        return Step(self, ops, {node: values[node] for node in self._stages.kept})

    def _lay_out(self, plan: StepPlan) -> Layout:
        return Layout.of(
            plan,
            self._groups,
            self._device,
            has_states=self.forward.inputs.states is not None,
        )

    def _ops(self, layout: Layout, check: Callable[[], None]) -> TorchOps:
        return self._operations(
            layout,
            self.pages,
            self.states,
            self._rotations,
            check,
            self._exchanges,
            self._constants,
        )

    def _of_tokens(self, ops: TorchOps, layout: Layout) -> Values:
        """Run the stage of all tokens. Returns what the next stage reads."""
        values = self._given(layout)
        self._stages.tokens.run(ops, values)
        return {node: values[node] for node in self._stages.kept}

    def _given(self, layout: Layout) -> Values:
        """The inputs of a step."""
        inputs = self.forward.inputs
        values: Values = {
            inputs.tokens: layout.tokens,
            inputs.positions: layout.positions,
        }
        if inputs.states is not None:
            assert layout.states is not None, "the layout has them"
            values[inputs.states] = layout.states
        return values

    def _compute(self, layout: Layout, logits: torch.Tensor) -> None:
        """Run all stages for all tokens of a layout. Waits for nothing, so it can be recorded."""
        ops = self._ops(layout, lambda: None)
        values = self._of_tokens(ops, layout)
        values[self.forward.inputs.rows] = torch.arange(len(logits), device=self._device)
        self._stages.states.run(ops, values)
        self._stages.logits.run(ops, values)
        logits.copy_(values[self._computed.logits])

    def _together(self, recorded: Collective | None) -> Together | Alone:
        """How ranks warm up."""
        if self._collective is None:
            return Alone()

        def expected(tokens: int, rows: int) -> Iterator[Value]:
            parts = self._stages
            of_rows = _values(rows, parts.states, parts.logits)
            return chain(_values(tokens, parts.tokens), of_rows)

        def use(exchanges: Exchanges) -> None:
            self._exchanges = exchanges

        own = self._collective
        return Together(own, recorded or own, self._device, expected, use)

    def _exchanged(self, plan: StepPlan, latest: torch.Tensor) -> Exchanges:
        """The exchanges of the ranks in a step."""
        assert self._collective is not None, "there are other ranks"
        latest_value: Value = tuple(latest.shape), latest.dtype
        first = [latest_value] if _has_unknown(plan) else []
        if self._graph is not None:
            replay = self._graph.replay_padding
            return Exchanges(self._collective, self._device, first, replay)
        return Exchanges(self._collective, self._device, chain(first, self._eager(plan)))

    def _eager(self, plan: StepPlan) -> Iterator[Value]:
        """The values that each rank gives to the exchanges of a step without a graph, in order."""
        chunks, parts = rows_of(plan.chunks), self._stages
        tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
        yield from _values(padded(tokens), parts.tokens)
        for some in self._parts(logit_rows(chunks)):
            yield from _values(padded(len(some)), parts.states, parts.logits)
        for some in self._parts(state_rows(chunks)):
            yield from _values(padded(len(some)), parts.states)

    def _parts(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """The rows that are computed at once."""
        size = self._operations.most_read
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]

    def _obstacle(self) -> str:
        """Why steps cannot be recorded; empty: they can."""
        if self.forward.inputs.states is not None:
            return "a prediction head reads hidden states"
        return next(filter(None, map(self._operations.obstacle, self.forward.nodes)), "")

    def rows(
        self,
        ops: TorchOps,
        kept: Values,
        rows: Sequence[int],
        *,
        logits: bool,
    ) -> Iterator[RowsTile]:
        """Numbers of rows, and their logits (rows, vocabulary) or hidden states (rows, width)."""
        for some in self._parts(rows):
            indices = np.zeros(padded(len(some)), np.int64)
            indices[: len(some)] = some
            values = {**kept, self.forward.inputs.rows: sent(indices, self._device)}
            ops.read(some)
            self._stages.states.run(ops, values)
            if logits:
                self._stages.logits.run(ops, values)
            read = values[self._computed.logits if logits else self._computed.states]
            self._compare(read[: len(some)])
            yield some, read[: len(some)]

    def _compare(self, read: torch.Tensor) -> None:
        """Let the ranks compare rows that a step's plan reads. A graph overwrites its logits."""
        if self._exchanges is not None:
            self.compared.add(read[:, :_COMPARED].clone())

    def _check_attention(self) -> None:
        shapes = set()
        for node in self.forward.nodes:
            if isinstance(node, Attend):
                shapes.add(attention_shape(node.spec))
            elif isinstance(node, LatentAttend):
                shapes.add(latent_shape(node.spec))
        for shape in shapes:
            shape.check(self._device)


def _has_unknown(plan: StepPlan) -> bool:
    return any(chunk.tokens[0] == UNKNOWN for chunk in plan.chunks)


def _values(rows: int, *parts: Stage) -> Iterator[Value]:
    """The values that each rank gives to the exchanges of stages that compute so many rows."""
    for node in (node for part in parts for node, _ in part.steps):
        if isinstance(node, SumRanks):
            yield (rows, node.width), torch.float32
        elif isinstance(node, GatherRanks):
            yield (rows, max(node.widths)), torch.float32


class ProgramMemory:
    """State as bytes, of an object that has a program; see `heddle.executor.PageMemory`."""

    _program: Program

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return self._program.pages.read(page, windows)

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self._program.pages.write(page, content, windows)

    def read_snapshot(self, snapshot: int) -> memoryview:
        return self._program.states.read(snapshot)

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self._program.states.write(snapshot, content)


class Step:
    """A step whose tokens are computed. The plan reads some of its rows."""

    def __init__(self, program: Program, ops: TorchOps, kept: Values) -> None:
        self._program = program
        self._ops = ops
        self._kept = kept

    def logits(self, rows: Sequence[int]) -> Iterator[RowsTile]:
        """Numbers of rows, and their logits (rows, vocabulary) on the device."""
        return self._program.rows(self._ops, self._kept, rows, logits=True)

    def states(self, rows: Sequence[int]) -> Iterator[RowsTile]:
        """Numbers of rows, and their last hidden states (rows, width) on the device."""
        return self._program.rows(self._ops, self._kept, rows, logits=False)
