"""The executor of a device that runs in a process of its own, as the engine sees it."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from heddle.errors import EngineFailedError, StepAbandonedError
from heddle.extensions.processes.children.process import ChildProcess, close_all
from heddle.extensions.processes.edits import MadeEdits
from heddle.extensions.processes.messages import Answer, Call, Facts, Kind, decode, encode
from heddle.extensions.processes.plans import PlanWriter, read_result
from heddle.extensions.processes.rules import RulesWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.errors import HeddleError
    from heddle.extensions.processes.messages import LoadOrder, SlotEdits
    from heddle.roofline import Limits
    from heddle.step import DeviceMemory, LogitsSummary, StepPlan, StepResult

_GOODBYE_SECONDS = 10.0
"""How long the process may take to end before it is killed. It may wait for ranks of its own."""

_ABANDON_SECONDS = 5.0
"""How long an abandoned step may take to end before the process is killed."""


class DeviceProcess:
    """The process of a device. Executors share it: that of a model, and that of its head.

    Attributes:
        device_memory: the newest reading of the device's memory. Any thread may read it.
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
        name = f"the process of device {device}"
        self._process = ChildProcess(name, "heddle.extensions.processes.child", seconds, self._hear)
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
        self._process.send(Kind.LOAD, encode(order))
        facts: Facts = self._answer(progress)
        self.device_memory = facts.device_memory
        return facts

    def next_step(self) -> int:
        """A number for a step."""
        self._steps += 1
        return self._steps

    def send(self, kind: Kind, content: bytes) -> None:
        """Send a message about a step.

        Raises:
            EngineFailedError: the process has failed.
            StepAbandonedError: the process was abandoned, and has ended.
        """
        try:
            self._process.send(kind, content)
        except EngineFailedError as error:
            raise self._failure(error) from error

    def result(self, executor: int) -> tuple[float, Any]:
        """Wait for the result of an executor's oldest step: its `compute_seconds`, and the result.

        Raises what the step raised.
        """
        self._waits = True
        try:
            _, content = self._process.take(self._results[executor])
        except EngineFailedError as error:
            raise self._failure(error) from error
        finally:
            self._waits = False
        seconds, memory, written = _value(decode(content[1:]))
        self.device_memory = memory or self.device_memory
        return seconds, written

    def call(self, executor: int, method: str, *arguments: Any) -> Any:
        """Call a method of an executor, and return what it returns. Raises what it raises."""
        return self.follow(lambda _: None, executor, method, *arguments)

    def follow(
        self, progress: Callable[[int], None], executor: int, method: str, *arguments: Any
    ) -> Any:
        """As `call`, with reports of progress."""
        self._process.send(Kind.CALL, encode(Call(executor, method, arguments)))
        return self._answer(progress)

    def _answer(self, progress: Callable[[int], None]) -> Any:
        """Wait for an answer, and pass on the reports before it."""
        while True:
            kind, content = self._process.take(self._answers)
            if kind != Kind.PROGRESS:
                return _value(decode(content))
            progress(decode(content))

    def abandon(self) -> None:
        """See `Executor.abandon`. A step that does not end costs the process."""
        with self._lock:
            if self._is_abandoned:
                return
            self._is_abandoned = True
        with contextlib.suppress(EngineFailedError):
            self._process.send(Kind.ABANDON)
        timer = threading.Timer(_ABANDON_SECONDS, self._kill_if_computing)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """End the process at once, and do not wait for it."""
        self._process.kill()

    def watch(self, failed: Callable[[str], None]) -> None:
        """See `Executor.watch`."""
        self._process.watch(failed)

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

    def _hear(self, kind: int, content: bytes) -> None:
        if kind == Kind.RESULT:
            self._results[content[0]].put((kind, content))
        elif kind == Kind.LOG:
            name, level, text = decode(content)
            logging.getLogger(name).log(level, "%s", text)
        else:
            self._answers.put((kind, content))


class ProcessExecutor:
    """Runs plans in the process of a device; see `heddle.step.Executor`."""

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
        self._process = process
        self._number = number
        self._plans = PlanWriter(process.rules)
        self._edits = MadeEdits()
        if number == 0:  # for a model that was dropped and not closed, for example by a failed load
            weakref.finalize(self, process.kill).atexit = False
        self._submitted: deque[tuple[int, Callable[[], dict[int, SlotEdits]] | None]] = deque()

    @property
    def device_memory(self) -> DeviceMemory | None:
        return self._process.device_memory

    def warm_up(self, done: Callable[[int], None]) -> None:
        self._process.follow(done, self._number, "warm_up")

    def measure_limits(self) -> Limits:
        limits: Limits = self._call("measure_limits")
        return limits

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return memoryview(self._call("read_page", page, [*windows]))

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self._call("write_page", page, bytes(content), [*windows])

    def read_snapshot(self, snapshot: int) -> memoryview:
        return memoryview(self._call("read_snapshot", snapshot))

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self._call("write_snapshot", snapshot, bytes(content))

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`. If the device refuses the plan, `collect` raises the error."""
        step = self._process.next_step()
        self._process.send(Kind.SUBMIT, self._plans.write(self._number, step, plan))
        self._submitted.append((step, self._edits.begin(plan)))

    def collect(self) -> StepResult:
        step, edits = self._submitted.popleft()
        try:
            if edits is not None:
                self._process.send(Kind.EDITS, encode((step, edits())))
            if self.runs_ahead:
                self._process.send(Kind.COLLECT, bytes([self._number]))
            self.compute_seconds, written = self._process.result(self._number)
        except BaseException:
            self._submitted.clear()  # a failure ends all steps in flight
            raise
        result = read_result(written, self._edits.late)
        self._edits.observe(result)
        return result

    def watch(self, failed: Callable[[str], None]) -> None:
        self._process.watch(failed)

    def logits_summary(self) -> LogitsSummary | None:
        try:
            summary: LogitsSummary | None = self._call("logits_summary")
        except EngineFailedError:  # the process has ended
            return None
        return summary

    def abandon(self) -> None:
        self._process.abandon()

    def close(self) -> None:
        """End the process. The public attributes stay readable. Idempotent."""
        if self._number == 0:  # the executor of a head ends with that of the model
            self._process.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._process.call(self._number, method, *arguments)


def _value(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value
