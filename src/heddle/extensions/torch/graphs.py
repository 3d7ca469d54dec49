"""Steps of few tokens as recorded graphs: one copy and one launch in place of hundreds of launches.

A graph always does the work of its bucket: so many tokens, so many splits of attention. A step
takes the smallest bucket that holds it. What a step does not need is padding, which changes nothing
and writes to memory that no sequence owns. The bits are those of the same step without a graph.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from heddle.extensions.torch.device_errors import device_errors
from heddle.extensions.torch.layout import SPLIT, Layout, PlanIntegers, Sizes, Spare
from heddle.extensions.torch.settings import TorchSettings
from heddle.extensions.torch.staging import send, sent
from heddle.extensions.torch.tiles import MOST_READ, TILE, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.config import EngineConfig
    from heddle.extensions.torch.tiles import RowsTile
    from heddle.extensions.torch.together import Alone, Together
    from heddle.step import StepPlan

_log = logging.getLogger(__name__)

_FIRST_SPLITS, _GROWTH = 4, 4

_FEW_QUERIES = 4
"""Queries of a tile in recorded steps. Most sequences have one token there, or few with guesses,
and attention computes all rows of a tile."""


class Bucket(NamedTuple):
    """The sizes of a graph: tokens, each in a tile of its own, and splits of attention."""

    tokens: int
    splits: int


def buckets(most_tokens: int, context: int) -> list[Bucket]:
    """All buckets, the largest first, so that the others fit into its memory.

    Rows are cheap beside the weights, which a step reads in any case, so larger sizes are further
    apart. Programs of attention without work end at once.
    """
    tokens, size = [], TILE
    while size < most_tokens:
        tokens.append(size)
        size += max(TILE, 1 << size.bit_length() - 2)
    tokens.append(padded(most_tokens))
    most = -(-context // SPLIT)
    splits, number = [], _FIRST_SPLITS
    while number < most:
        splits.append(number)
        number *= _GROWTH
    splits.append(most)
    return [Bucket(size, number) for number in reversed(splits) for size in reversed(tokens)]


def step_sizes(batch_tokens: int) -> list[int]:
    """Numbers of tokens whose steps launch all variants of kernels that steps may launch.

    Only matmuls have variants, by the tiles of a program; see `kernels.matmul.program_of`.
    """
    most, sizes = padded(batch_tokens), [TILE]
    while 2 * sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return sizes if most == TILE else [*sizes, most]


class Capture(Protocol):
    """Records work on a device."""

    def prepare(self, region: Callable[[], None]) -> None:
        """Do once, as it is, what `record` needs done before."""
        ...

    def record(self, region: Callable[[], None]) -> Callable[[], None]:
        """Record what `region` does. The result repeats that work.

        What the region allocates is the recording's own. It reads and writes all other tensors
        where they were, so they must stay.
        """
        ...


class CudaCapture:
    """CUDA graphs. All recordings share one pool of memory, because one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def prepare(self, region: Callable[[], None]) -> None:
        """Compile kernels, make the workspaces of libraries, and connect to other ranks."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                region()
            current.wait_stream(self._stream)

    def record(self, region: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            # Other models of this process may allocate meanwhile, in their own threads, and a
            # thread of NCCL may ask for events; see `heddle.extensions.torch.collective`.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                region()
            except BaseException:
                # `torch.cuda.graph` would stay on this stream, and raise that the recording is
                # not valid in place of the reason.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay


def capture_of(device: torch.device, config: EngineConfig) -> Capture | None:
    """The capture that records the steps of a device; None: steps are not recorded."""
    wanted = device.type == "cuda" and config.of(TorchSettings).cuda_graphs
    return CudaCapture(device) if wanted else None


class Graph:
    """The step of a bucket, to be recorded, and the tensors that it reads and writes."""

    def __init__(
        self, bucket: Bucket, spare: Spare, logits: torch.Tensor, of_tile: int = _FEW_QUERIES
    ) -> None:
        """`logits` (tokens, vocabulary) gets those of all tokens. A tile has `of_tile` queries."""
        tokens, splits = bucket
        groups = len(spare.places)
        self._sizes = Sizes(tokens, tokens, tokens, tokens, splits, groups, of_tile)
        self._spare = spare
        self._integers = torch.empty(self._sizes.length, dtype=torch.int64, device=logits.device)
        self.layout = Layout.over(self._integers, self._sizes)
        self.logits = logits
        self._repeat: Callable[[], None] | None = None
        self._fill(PlanIntegers((), groups))
        self._padding = self._integers.clone()  # for when there is no memory

    def record(self, capture: Capture, compute: Callable[[Layout, torch.Tensor], None]) -> None:
        """Record the computation of the layout, which is empty."""
        self._repeat = capture.record(lambda: compute(self.layout, self.logits))

    def lay_out(self, plan: StepPlan) -> Layout:
        """Bring a plan's integers to the graph's own tensors."""
        self._fill(PlanIntegers(plan.chunks, len(self._spare.places), self._sizes.of_tile))
        return self.layout

    def replayed(self, compare: Callable[[torch.Tensor], None]) -> GraphStep:
        """Compute the layout. `compare` takes the logits that the step's plan reads."""
        assert self._repeat is not None, "it is recorded when it is made"
        self._repeat()
        return GraphStep(self.logits, compare)

    def replay_padding(self) -> None:
        """Compute padding only. This takes no memory."""
        assert self._repeat is not None, "it is recorded when it is made"
        self._integers.copy_(self._padding)
        self._repeat()

    def _fill(self, integers: PlanIntegers) -> None:
        send(integers.packed(self._sizes, self._spare), self._integers)


class GraphStep:
    """A step that a graph computed; see `heddle.extensions.torch.program.Step`.

    The next step overwrites its logits, on the same stream.
    """

    def __init__(self, logits: torch.Tensor, compare: Callable[[torch.Tensor], None]) -> None:
        self._logits = logits
        self._compare = compare

    def logits(self, rows: Sequence[int]) -> Iterator[RowsTile]:
        if [*rows] == [*range(len(rows))]:
            found = self._logits[: len(rows)]
        else:
            found = self._logits[sent(np.array(rows), self._logits.device)]
        self._compare(found)
        yield rows, found

    def states(self, rows: Sequence[int]) -> Iterator[RowsTile]:
        assert not rows, "steps whose hidden states are read have no graph"
        yield from ()


class Graphs:
    """The graphs of a program."""

    def __init__(
        self,
        compute: Callable[[Layout, torch.Tensor], None],
        vocabulary: int,
        spare: Spare,
        device: torch.device,
        capture: Capture | None,
        all_buckets: Sequence[Bucket],
        batch_tokens: int,
        together: Together | Alone,
    ) -> None:
        """`compute` writes the logits of a layout's first tokens to a tensor (rows, vocabulary).

        Without `capture`, the warm-up only compiles kernels, those of steps of up to
        `batch_tokens`. All ranks do it `together`.
        """
        self._compute = compute
        self._together = together
        self._spare = spare
        self._capture = capture
        self._buckets = all_buckets if capture else ()
        self._sizes = step_sizes(batch_tokens)
        self._splits = min(bucket.splits for bucket in all_buckets)
        self._most = max(bucket.tokens for bucket in all_buckets)
        self._shape = self._most, vocabulary
        self._device = device
        self._graphs: dict[Bucket, Graph] = {}

    @property
    def warm_ups(self) -> int:
        """How many parts the warm-up has."""
        return len(self._sizes) + len(self._buckets)

    def warm_up(self, done: Callable[[int], None]) -> None:
        """Compile kernels and record all graphs. `done` gets the number of parts so far.

        Without the memory for graphs, or where the device refuses to record, there are none.
        """
        logits = torch.empty(self._shape, device=self._device)
        parts = count(1)
        for tokens in self._sizes:  # else the first prompt would wait for a compiler
            self._compute_empty(tokens, logits[: min(tokens, MOST_READ)])
            done(next(parts))
        try:
            for bucket in self._buckets:
                self._graphs[bucket] = self._recorded(bucket, logits)
                done(next(parts))
        except device_errors() as error:
            self._graphs.clear()
            _log.warning("decode steps run without CUDA graphs: recording failed: %s", error)

    def of(self, plan: StepPlan) -> Graph | None:
        """The graph that computes a plan, if there is one."""
        tokens, end = 0, 0
        for chunk in plan.chunks:
            if chunk.score is not None or chunk.pool is not None or chunk.keep_states:
                return None
            if chunk.adapters or chunk.sight:  # a graph has no operations for them
                return None
            tokens += len(chunk.tokens)
            end = max(end, chunk.start + len(chunk.tokens))
        if not self._graphs or not 0 < tokens <= self._most:
            return None
        holding = [
            bucket
            for bucket in self._graphs
            if bucket.tokens >= tokens and bucket.splits * SPLIT >= end
        ]
        return self._graphs[min(holding)]

    def _compute_empty(self, tokens: int, logits: torch.Tensor) -> None:
        """Compute a step of so many tokens, all of them padding."""
        layout = Graph(Bucket(tokens, self._splits), self._spare, logits, TILE).layout
        self._together.compute(tokens, len(logits), lambda: self._compute(layout, logits))

    def _recorded(self, bucket: Bucket, logits: torch.Tensor) -> Graph:
        assert self._capture is not None, "it makes the recordings"
        capture, rows = self._capture, bucket.tokens
        graph = Graph(bucket, self._spare, logits[:rows])
        self._together.prepare(
            rows, rows, lambda: capture.prepare(lambda: self._compute(graph.layout, graph.logits))
        )
        self._together.record(rows, rows, lambda: graph.record(capture, self._compute))
        return graph
