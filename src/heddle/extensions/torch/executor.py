"""The torch executor: computes the recorded graph on tensors of a torch device.

`load` (`load.py`) makes it. A step is started, which asks the device for all of its work, and
finished, which waits for the results (`sampling.py` chooses tokens). On a GPU, `submit` starts it.
Elsewhere a started step is a computed one, so `collect` does both, and the caller works before.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch

from heddle.embedding import EmbeddingParams
from heddle.errors import EngineFailedError, StepAbandonedError, StepMemoryError
from heddle.executors.arithmetic import rope_digest, source_digest, trigonometry_digest
from heddle.executors.cpu.batch import pooled_states
from heddle.executors.cpu.readout import pooled
from heddle.executors.failures import summarize
from heddle.executors.graph.forward import model_work, plain_products
from heddle.executors.plan_problems import plan_problems
from heddle.executors.seeing import eyes_mix
from heddle.executors.serving import describe_memory, page_layout, position_bytes
from heddle.extensions.torch.allocation import is_out_of_memory, out_of_memory_in_step, release
from heddle.extensions.torch.chunk_rows import rows_of
from heddle.extensions.torch.device import device_digest, device_name
from heddle.extensions.torch.device_errors import device_errors
from heddle.extensions.torch.device_memory import device_memory
from heddle.extensions.torch.encoder import TorchEncoder
from heddle.extensions.torch.limits import measure
from heddle.extensions.torch.program import ProgramMemory
from heddle.extensions.torch.readout import read
from heddle.extensions.torch.sampling import Samplers
from heddle.extensions.torch.scoring import score_on_device, score_on_host
from heddle.extensions.torch.sources import SOURCES
from heddle.state import PAGE_TOKENS
from heddle.step import Deferred, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from heddle.config import EngineConfig
    from heddle.executor import DeviceMemory, LogitsSummary, ModelShape
    from heddle.executors.cpu.batch import PooledStates
    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.extensions.torch.adapters import TorchAdapter
    from heddle.extensions.torch.agreement import Attempt
    from heddle.extensions.torch.chunk_rows import ChunkRows
    from heddle.extensions.torch.collective import Compared
    from heddle.extensions.torch.program import Program
    from heddle.extensions.torch.readout import Read
    from heddle.extensions.torch.sampling import StartedPicks
    from heddle.extensions.torch.weights import Matrix
    from heddle.models.eyes import Eyes
    from heddle.roofline import Limits
    from heddle.state import StateMemory
    from heddle.step import Chunk, Failed, Sampled, StepPlan
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import Change


class Uploaded(NamedTuple):
    """Bytes of weights on the device: of the matrices that matmuls read, and of all."""

    matmul_bytes: int
    bytes: int


@dataclass(slots=True)
class _Started:
    """A step whose forward pass the device has been asked for.

    Attributes:
        began: when it was started, in seconds of `time.perf_counter`.
        wait_for_edits: waits until threads have made the edits of logits; None without edits.
        compared: values of the step that ranks compare.
        picks: samples asked of the device; None before the edits are made.
    """

    began: float
    plan: StepPlan
    sampling: list[ChunkRows]
    found: Read
    wait_for_edits: Callable[[], None] | None
    compared: Compared
    picks: StartedPicks | None = None


class TorchExecutor(ProgramMemory):
    """Runs plans on a torch device; see `heddle.executor.Executor`.

    Attributes:
        runs_ahead: whether `submit` starts a step, also before the step before has been collected.
        rewound: slots whose fixed-size state the last step set back, because a guess was wrong.
        digest: of values of the last step that all ranks have alike.
    """

    def __init__(
        self,
        program: Program,
        shape: ModelShape,
        device: torch.device,
        config: EngineConfig,
        uploaded: Uploaded,
        memory: StateMemory,
        head: TorchExecutor | None = None,
        *,
        samples_on_device: bool,
        runs_ahead: bool = False,
    ) -> None:
        """With `samples_on_device`, the device runs the samplers that it has.

        It `runs_ahead` only if it does.
        """
        assert samples_on_device or not runs_ahead, "the device knows the tokens"
        self.runs_ahead = runs_ahead
        self.shape = shape
        self.memory = memory
        self.head = head
        self._device = device
        self._kv_type, self._quantize = config.kv_type, config.quantize
        self._most_tokens = config.batch_tokens
        self._program = program
        self._state_width = self._program.forward.states.width
        self.work = model_work(self._program.forward, uploaded.matmul_bytes, position_bytes(memory))
        of_head = head.memory.bytes if head else 0
        self.held_bytes: int = uploaded.bytes + memory.bytes + of_head
        self._weight_bytes = uploaded.bytes
        self.compute_seconds = 0.0
        self._ended = 0.0  # when the last step ended
        self._samplers = Samplers(
            shape.vocabulary, device, config.slots if samples_on_device else 0
        )
        self._score = score_on_device if samples_on_device else score_on_host
        self._sums: dict[int, PooledStates] = {}  # by slot, for sequences with an embedding
        self._submitted: StepPlan | None = None  # to be started
        self._started: deque[Attempt[_Started]] = deque()
        self._lacking: StepMemoryError | None = None  # of a step ahead
        self._logits: torch.Tensor | None = None  # of the rows that were sampled last
        self._abandoned = False
        self.rewound: tuple[int, ...] = ()
        self.digest = b""

    @property
    def page_format(self) -> str:
        stored = f"{self._kv_type} {self._quantize}"
        size = f"{PAGE_TOKENS} {page_layout(self.memory)}"
        arithmetic = f"{source_digest(*SOURCES)} {trigonometry_digest()}"
        rope = rope_digest(self._program.forward)
        return f"torch {stored} {size} {device_digest(self._device)} {arithmetic} {rope}"

    @property
    def summary(self) -> str:
        return (
            f"{device_name(self._device)}, weights {self._weight_bytes / 1e6:,.0f} MB,"
            f" {describe_memory(self.memory, self._kv_type)}"
        )

    @property
    def device_memory(self) -> DeviceMemory | None:
        return device_memory(self._device)

    def use_edits(self, edits: EditSource) -> None:
        """Take the edits of logits from there. This is called before the first step."""
        self._samplers.edits = edits

    @property
    def warm_ups(self) -> int:
        return self._program.warm_ups

    def warm_up(self, done: Callable[[int], None]) -> None:
        with self._computing():
            self._program.warm_up(done)

    def adaptable(self) -> Mapping[str, Matrix]:
        """The matrices that adapters may change, by name."""
        return plain_products(self._program.forward)

    def make_adapter(self, changes: Mapping[str, Change]) -> TorchAdapter:
        return self._program.make_adapter(changes)

    def make_encoder(self, eyes: Eyes, checkpoint: Checkpoint, most: int) -> TorchEncoder:
        """See :class:`heddle.executors.seeing.SeeingExecutor`."""
        encoder = TorchEncoder(eyes, checkpoint, self._device, eyes_mix(self._quantize), most)
        self.held_bytes += encoder.held_bytes
        return encoder

    def measure_limits(self) -> Limits:
        return measure(self._device, self._weight_bytes)

    def submit(self, plan: StepPlan) -> None:
        self.check(plan)
        self.begin(plan)

    def check(self, plan: StepPlan) -> None:
        """Raise EngineFailedError if something in a plan is out of range."""
        problem = next(self._problems(plan), None)
        if problem is not None:
            raise EngineFailedError(f"the step was refused: {problem}")

    def begin(self, plan: StepPlan) -> None:
        """Submit a plan that was checked.

        If there is no memory for a step ahead, the next `collect` says so: the step before it is
        still to be collected, and has ended too.
        """
        if not self.runs_ahead:
            self._submitted = plan
            return
        is_ahead = bool(self._started)
        try:
            with self._computing():
                self._started.append(self._start(plan))
        except StepMemoryError as error:
            if not is_ahead:
                raise
            self._lacking = error

    def collect(self) -> StepResult:
        if self._lacking is not None:
            lacking, self._lacking = self._lacking, None
            raise lacking
        plan, self._submitted = self._submitted, None
        with self._computing():
            if plan is not None:
                self._started.append(self._start(plan))
            return self._finish(self._started.popleft())

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Translate errors of the device. They end all steps in flight."""
        try:
            with torch.inference_mode():
                yield
        except StepMemoryError:  # of any rank
            self._started.clear()
            raise
        except device_errors() as error:
            self._started.clear()
            if is_out_of_memory(error):
                release(self._device)
                raise out_of_memory_in_step(f"device {self._device}") from error
            raise EngineFailedError(f"the device failed: {error}") from error

    def watch(self, failed: Callable[[str], None]) -> None:
        """Nothing: it fails in steps only."""

    def logits_summary(self) -> LogitsSummary | None:
        try:
            return None if self._logits is None else summarize(self._logits.cpu().numpy())
        except RuntimeError:  # a device that failed returns nothing
            return None

    def abandon(self) -> None:
        self._abandoned = True

    def close(self) -> None:
        """Free all memory. The public attributes stay readable. Idempotent."""
        if self.head is not None:
            self.head.close()
        for name in ("_submitted", "_started", "_program", "_samplers", "_sums"):
            vars(self).pop(name, None)
        release(self._device)

    def _problems(self, plan: StepPlan) -> Iterator[str]:
        """Everything in a plan that is out of range."""
        reads_states = self._program.forward.inputs.states is not None
        yield from plan_problems(
            plan,
            self.shape,
            self.memory,
            self._most_tokens,
            reads_states=reads_states,
            follows_step=len(self._started) > 0,
        )
        yield from self._program.states.problems(plan)
        adapters = (use.adapter for chunk in plan.chunks for use in chunk.adapters)
        if any(one.forward is not self._program.forward for one in adapters):
            yield "an adapter is of another model"

    def _start(self, plan: StepPlan) -> Attempt[_Started]:
        """Ask the device for the step. Nothing here waits for results that the host reads later."""
        return self._program.attempt(plan, self._samplers.latest, lambda: self._ask(plan))

    def _ask(self, plan: StepPlan) -> _Started:
        began = time.perf_counter()
        self._bind(plan)
        for copy in plan.copies:
            self._program.pages.copy(copy)
        self._program.states.prepare(plan)
        chunks = rows_of(plan.chunks)
        sampling = [one for one in chunks if one.chunk.sample]
        wait_for_edits = self._samplers.begin_edits([one.chunk for one in sampling])
        try:
            step = self._program.begin(plan, self._check, self._samplers.latest)
            found = read(step, chunks, self._sums, self._score)
        except BaseException:
            if wait_for_edits is not None:
                wait_for_edits()
            raise
        if sampling:
            self._logits = found.logits.values
        self._program.states.keep(plan)
        compared = self._program.compared
        started = _Started(began, plan, sampling, found, wait_for_edits, compared)
        if wait_for_edits is None:
            started.picks = self._samplers.start(sampling, found.logits)
        return started

    def _finish(self, attempt: Attempt[_Started]) -> StepResult:
        """Wait for the tokens, and set back the states of sequences whose guesses were wrong."""
        step = attempt.found
        if step is not None and step.wait_for_edits is not None:
            step.wait_for_edits()
        self._check()
        if attempt.lacking:
            ranks = ", ".join(map(str, attempt.lacking))
            raise out_of_memory_in_step(f"the device of rank {ranks}")
        assert step is not None, "it found the memory"
        if step.picks is None:
            step.picks = self._samplers.start(step.sampling, step.found.logits)
        outcomes = self._samplers.finish(step.picks)
        self.digest = step.compared.digest()
        now = time.perf_counter()
        self.compute_seconds += now - max(step.began, self._ended)
        self._ended = now
        self.rewound = tuple(
            one.chunk.slot
            for one, own in zip(step.sampling, outcomes, strict=True)
            if one.chunk.uncertain and not _stands(one.chunk, own)
        )
        for slot in self.rewound:
            self._program.states.rewind(slot)
        sampled = tuple(chain.from_iterable(outcomes))
        embeddings = pooled(step.plan, self._sums)
        return StepResult(sampled, step.found.scored, embeddings, step.found.kept)

    def _bind(self, plan: StepPlan) -> None:
        for binding in plan.bindings:
            params = binding.params
            if isinstance(params, EmbeddingParams):
                self._sums[binding.slot] = pooled_states(params, self._state_width)
            else:
                self._samplers.bind(binding, params)

    def _check(self) -> None:
        """Raises StepAbandonedError: the step was abandoned."""
        if self._abandoned:
            raise StepAbandonedError("the step was abandoned")


def _stands(chunk: Chunk, outcomes: Sequence[Sampled | Failed | Deferred]) -> bool:
    """Whether all guesses of a chunk were right, and a token after them was sampled."""
    return len(outcomes) > chunk.guesses and not isinstance(outcomes[0], Deferred)
