"""The executor of a device that runs in a process of its own, as the engine sees it."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from heddle.errors import EngineFailedError, StepAbandonedError, UnsupportedModelError
from heddle.extensions.processes.adapters import SentAdapters, SentChange
from heddle.extensions.processes.children.messages import (
    Content,
    Done,
    ReadPage,
    ReadSnapshot,
    WarmUp,
    WritePage,
    WriteSnapshot,
)
from heddle.extensions.processes.children.places import start_here
from heddle.extensions.processes.children.process import ChildProcess, close_all
from heddle.extensions.processes.edits import MadeEdits
from heddle.extensions.processes.messages import (
    Abandon,
    Collect,
    Edits,
    LastLogits,
    Loaded,
    Log,
    MadeAdapter,
    MakeAdapter,
    MeasuredLimits,
    MeasureLimits,
    Progress,
    Refusal,
    Report,
    SummariseLogits,
)
from heddle.extensions.processes.plans import Expected, PlanWriter, Result
from heddle.extensions.processes.rules import RulesWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.errors import HeddleError
    from heddle.executor import DeviceMemory, LogitsSummary
    from heddle.extensions.processes.adapters import SentAdapter
    from heddle.extensions.processes.children.messages import Message
    from heddle.extensions.processes.messages import Facts, LoadOrder, SlotEdits
    from heddle.roofline import Limits
    from heddle.step import StepPlan, StepResult
    from heddle.weights.low_rank import Change

AnswerT = TypeVar("AnswerT", bound="Message")

_GOODBYE_SECONDS = 10.0
"""How long the process may take to end before it is killed. It may wait for ranks of its own."""

_ABANDON_SECONDS = 5.0
"""How long an abandoned step may take to end before the process is killed."""


class DeviceProcess:
    """The process of a device. Executors share it: that of a model, and that of its head.

    Attributes:
        device_memory: the newest reading of the device's memory. Any thread may read it.
        kill: ends the process at once, and does not wait for it.
        watch: see `Executor.watch`.
    """

    def __init__(self, device: str, seconds: float) -> None:
        """Start the process. `seconds`: how long it may be silent.

        Raises:
            EngineFailedError: it does not start, or runs another version.
        """
        self._is_abandoned = False
        self._waits = False  # for the result of a step
        self._steps = 0
        self.device_memory: DeviceMemory | None = None
        self._lock = threading.Lock()
        self._calls = threading.Lock()  # any thread may make an adapter meanwhile
        name = f"the process of device {device}"
        program = "heddle.extensions.processes.child"
        started = start_here(program, name)
        self._process = ChildProcess(name, started, seconds, Report, self._hear)
        self.kill, self.watch = self._process.kill, self._process.watch
        self._answers = self._process.queue()
        self._results = [self._process.queue(), self._process.queue()]
        self.rules = RulesWriter()
        try:
            self._process.greet()
        except BaseException:
            self.close()
            raise

    def load(self, order: LoadOrder, progress: Callable[[int], None]) -> Facts:
        """Load a model. Raises what the load raises."""
        facts = self.call(order, Loaded, progress).facts
        self.device_memory = facts.device_memory
        return facts

    def next_step(self) -> int:
        """A number for a step."""
        self._steps += 1
        return self._steps

    def send(self, message: Message) -> None:
        """Send a message about a step.

        Raises:
            EngineFailedError: the process has failed.
            StepAbandonedError: the process was abandoned, and has ended.
        """
        try:
            self._process.send(message)
        except EngineFailedError as error:
            raise self._failure(error) from error

    def result(self, executor: int) -> Result:
        """Wait for the result of an executor's oldest step. Raises what the step raised."""
        self._waits = True
        try:
            result = self._process.take(self._results[executor])
        except EngineFailedError as error:
            raise self._failure(error) from error
        finally:
            self._waits = False
        assert isinstance(result, Result)
        if result.failure is not None:
            raise result.failure.error
        self.device_memory = result.memory or self.device_memory
        return result

    def call(
        self,
        message: Message,
        answer: type[AnswerT],
        progress: Callable[[int], None] = lambda _: None,
    ) -> AnswerT:
        """Send a message, and wait for its answer. `progress` gets the reports before it.

        Raises what the call raised.
        """
        with self._calls:
            self._process.send(message)
            while True:
                found = self._process.take(self._answers)
                if isinstance(found, answer):
                    return found
                if isinstance(found, Refusal):
                    raise found.failure.error
                if not isinstance(found, Progress):
                    raise self._process.fail(f"{self._process.name} sent {type(found).__name__}")
                progress(found.done)

    def abandon(self) -> None:
        """See `Executor.abandon`. A step that does not end costs the process."""
        with self._lock:
            if self._is_abandoned:
                return
            self._is_abandoned = True
        with contextlib.suppress(EngineFailedError):
            self._process.send(Abandon())
        timer = threading.Timer(_ABANDON_SECONDS, self._kill_if_computing)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        close_all([self._process], _GOODBYE_SECONDS)

    def _kill_if_computing(self) -> None:
        if self._waits:
            self._process.kill()

    def _failure(self, error: EngineFailedError) -> HeddleError:
        """The error of a step that waits for a process that has ended."""
        if self._is_abandoned:
            return StepAbandonedError("the step was abandoned")
        return error

    def _hear(self, report: Message) -> None:
        match report:
            case Result():
                self._results[report.executor].put(report)
            case Log():
                logging.getLogger(report.logger).log(report.level, "%s", report.text)
            case _:
                self._answers.put(report)


class _Submitted(NamedTuple):
    """A step in flight: its number, its results, and how to wait for its edits if it has any."""

    step: int
    expected: Expected
    edits: Callable[[], dict[int, SlotEdits]] | None


class ProcessExecutor:
    """Runs plans in the process of a device; see `heddle.executor.Executor`."""

    def __init__(self, process: DeviceProcess, facts: Facts, number: int = 0) -> None:
        """Takes over the process. `number` is 1 for the executor of a head."""
        self.shape = facts.shape
        self.memory = facts.memory
        self.page_format = facts.page_format
        self.summary = facts.summary
        self.held_bytes = facts.held_bytes
        self.work = facts.work
        self.runs_ahead = facts.runs_ahead
        self.warm_ups = facts.warm_ups
        self.head = None if facts.head is None else ProcessExecutor(process, facts.head, 1)
        self.compute_seconds = 0.0
        self.watch, self.abandon = process.watch, process.abandon
        self._process = process
        self._number = number
        self._adapts = facts.adapts
        self._adapters = SentAdapters()
        self._plans = PlanWriter(process.rules, self._adapters)
        self._edits = MadeEdits()
        if number == 0:  # for a model that was dropped and not closed, for example by a failed load
            weakref.finalize(self, process.kill).atexit = False
        self._submitted: deque[_Submitted] = deque()

    @property
    def device_memory(self) -> DeviceMemory | None:
        return self._process.device_memory

    def warm_up(self, done: Callable[[int], None]) -> None:
        self._process.call(WarmUp(self._number), Done, done)

    def measure_limits(self) -> Limits:
        return self._process.call(MeasureLimits(self._number), MeasuredLimits).limits

    def make_adapter(self, changes: Mapping[str, Change]) -> SentAdapter:
        """See :meth:`heddle.executors.adapting.AdaptingExecutor.make_adapter`."""
        if not self._adapts:
            raise UnsupportedModelError(
                f"adapters are not supported where this model runs ({self.summary}); load it with"
                " --device cpu",
                param="lora",
            )
        sent = {name: SentChange.of(change) for name, change in changes.items()}
        number, dropped = self._adapters.next_number(), self._adapters.take_dropped()
        order = MakeAdapter(self._number, number, sent, dropped)
        return self._adapters.made(number, self._process.call(order, MadeAdapter).bytes)

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return self._process.call(ReadPage(self._number, page, [*windows]), Content).content

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self._process.call(WritePage(self._number, page, [*windows], content), Done)

    def read_snapshot(self, snapshot: int) -> memoryview:
        return self._process.call(ReadSnapshot(self._number, snapshot), Content).content

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self._process.call(WriteSnapshot(self._number, snapshot, content), Done)

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`. If the device refuses the plan, `collect` raises the error."""
        step = self._process.next_step()
        self._process.send(self._plans.write(plan, step, self._number))
        expected = Expected(plan, self.shape.vocabulary)
        self._submitted.append(_Submitted(step, expected, self._edits.begin(plan)))

    def collect(self) -> StepResult:
        step, expected, edits = self._submitted.popleft()
        try:
            if edits is not None:
                self._process.send(Edits(step, edits()))
            if self.runs_ahead:
                self._process.send(Collect(self._number))
            result = self._process.result(self._number)
            read = expected.read(result, self._edits.late)
        except BaseException:
            self._submitted.clear()  # a failure ends all steps in flight
            raise
        self.compute_seconds = result.seconds
        self._edits.observe(read)
        return read

    def logits_summary(self) -> LogitsSummary | None:
        try:
            return self._process.call(SummariseLogits(self._number), LastLogits).summary
        except EngineFailedError:  # the process has ended
            return None

    def close(self) -> None:
        """End the process. The public attributes stay readable. Idempotent."""
        if self._number == 0:  # the executor of a head ends with that of the model
            self._process.close()
