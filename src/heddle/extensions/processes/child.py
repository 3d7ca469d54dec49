"""The program of a device's process: `python -m heddle.extensions.processes.child DESCRIPTOR`.

The main thread loads the model and computes. Another thread receives messages, so that a step can
be abandoned, and gets its edits of logits, while it is computed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Protocol

from heddle.doors import refer
from heddle.executor import Executor, WarmingExecutor
from heddle.executors.adapting import AdaptingExecutor
from heddle.extensions.processes.adapters import HeldAdapters
from heddle.extensions.processes.children.channel import ChannelClosedError
from heddle.extensions.processes.children.messages import Close, Done, Failed, WarmUp, serve_state
from heddle.extensions.processes.children.program import serve_parent
from heddle.extensions.processes.children.versions import open_same
from heddle.extensions.processes.edits import GivenEdits
from heddle.extensions.processes.failures import Failure
from heddle.extensions.processes.messages import (
    Abandon,
    Collect,
    Edits,
    Facts,
    LastLogits,
    Loaded,
    LoadOrder,
    Log,
    MadeAdapter,
    MakeAdapter,
    MeasuredLimits,
    MeasureLimits,
    Order,
    Progress,
    Refusal,
    SummariseLogits,
)
from heddle.extensions.processes.plans import PlanReader, Result, Step, write_result
from heddle.extensions.processes.rules import RulesReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.executor import DeviceMemory
    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.extensions.processes.children.channel import Channel
    from heddle.extensions.processes.children.messages import Message


_log = logging.getLogger(__name__)


class GuestExecutor(Executor, Protocol):
    """An executor that can run in a process of its own."""

    def use_edits(self, edits: EditSource) -> None:
        """Take edits of logits from there. This is called before the first step."""
        ...


class _Log(logging.Handler):
    """Sends records to the log of the engine's process."""

    def __init__(self, channel: Channel[Any], level: int) -> None:
        super().__init__(level)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(ChannelClosedError):
            text = self.format(record)
            self._channel.send(Log(record.name, record.levelno, text))


class MemoryReader:
    """Reads the memory of an executor's device, at most once a second."""

    _SECONDS = 1.0

    def __init__(self, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._clock = clock
        self._read_at = -math.inf

    def newer(self) -> DeviceMemory | None:
        """The memory; None if the last reading is not a second old."""
        now = self._clock()
        if now - self._read_at < self._SECONDS:
            return None
        self._read_at = now
        return self._executor.device_memory


class _Server:
    """Serves an executor and that of its head."""

    def __init__(self, channel: Channel[Any], executor: GuestExecutor) -> None:
        self._channel = channel
        self._executors: list[Any] = [executor, executor.head]
        self._memory = MemoryReader(executor)
        self._edits = GivenEdits()
        executor.use_edits(self._edits)
        self._failures: dict[int, Failure] = {}  # of steps that were refused, by executor
        self._adapters = HeldAdapters()
        self._plans = PlanReader(RulesReader(), self._adapters)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the engine's process asks for the end."""
        self._executors[0].watch(self._give_up)
        threading.Thread(target=self._receive, name="heddle-messages", daemon=True).start()
        while True:
            match message := self._messages.get():
                case Close():
                    self._executors[0].close()
                    return
                case Step():
                    self._submit(message)
                case Collect():
                    self._collect(message.executor)
                case _:
                    self._channel.send(self._answer(message))

    def _receive(self) -> None:
        """Receive messages until the engine's process ends. Then this process ends too."""
        try:
            while True:
                match message := self._channel.receive():
                    case Edits():
                        self._edits.give(message)
                    case Abandon():
                        self._executors[0].abandon()
                        self._edits.give(None)
                    case _:
                        self._messages.put(message)
        except ChannelClosedError:
            pass
        except Exception:
            _log.exception("messages cannot be received")
        finally:
            os._exit(1)

    def _give_up(self, problem: str) -> None:
        """Tell the engine's process that the executor has failed. It ends this process."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(Failed(problem))

    def _submit(self, step: Step) -> None:
        """Begin a step. An executor that does not run ahead computes it now."""
        self._edits.step = step.number
        executor = self._executors[step.executor]
        plan = self._plans.read(step)
        try:
            executor.submit(plan)
        except Exception as error:
            self._failures[step.executor] = _failure(error)
        if not executor.runs_ahead:
            self._collect(step.executor)

    def _collect(self, number: int) -> None:
        """Send the result of the oldest step. A step that was refused ended all before it, too."""
        self._channel.send(self._result(number))

    def _result(self, number: int) -> Result:
        if number in self._failures:
            return Result(number, self._failures.pop(number))
        executor = self._executors[number]
        try:
            result = executor.collect()
            return write_result(number, result, executor.compute_seconds, self._memory.newer())
        except Exception as error:
            return Result(number, _failure(error))

    def _report(self, done: int) -> None:
        self._channel.send(Progress(done))

    def _answer(self, call: Message) -> Message:
        try:
            return self._call(call)
        except Exception as error:
            return Refusal(_failure(error))

    def _call(self, call: Any) -> Message:
        executor = self._executors[call.executor]
        match call:
            case WarmUp():
                executor.warm_up(self._report)
                return Done()
            case MeasureLimits():
                return MeasuredLimits(executor.measure_limits())
            case SummariseLogits():
                return LastLogits(executor.logits_summary())
            case MakeAdapter():
                self._adapters.drop(call.dropped)
                changes = {name: one.change for name, one in call.changes.items()}
                adapter = executor.make_adapter(changes)
                self._adapters.keep(call.number, adapter)
                return MadeAdapter(adapter.bytes)
        return serve_state(executor, call)


def main(descriptor: int) -> None:
    """Serve the engine's process until it closes the channel."""
    serve_parent(descriptor, Order, _serve)


def _serve(channel: Channel[Any]) -> None:
    order = channel.receive()
    if not isinstance(order, LoadOrder):
        return
    logging.getLogger("heddle").setLevel(order.level)
    logging.getLogger("heddle").addHandler(_Log(channel, order.level))
    try:
        executor = _load(channel, order)
        server = _Server(channel, executor)
        loaded = Loaded(_facts(executor))
    except Exception as error:
        channel.send(Refusal(_failure(error)))
        return
    channel.send(loaded)
    server.run()


def _load(channel: Channel[Any], order: LoadOrder) -> GuestExecutor:
    with open_same(order.path, order.files) as checkpoint:
        executor: GuestExecutor = refer(order.load)(
            checkpoint,
            order.config.config,
            lambda loaded: channel.send(Progress(loaded)),
            **order.options,
        )
        return executor


def _failure(error: Exception) -> Failure:
    """The failure of `error`. Its traceback here is for the log of the engine's process."""
    error.add_note(
        "in the process of the device:\n" + "".join(traceback.format_tb(error.__traceback__))
    )
    return Failure.of(error)


def _facts(executor: Executor) -> Facts:
    return Facts(
        executor.shape,
        executor.memory,
        executor.page_format,
        executor.summary,
        executor.held_bytes,
        executor.device_memory,
        executor.work,
        executor.runs_ahead,
        executor.warm_ups if isinstance(executor, WarmingExecutor) else 0,
        isinstance(executor, AdaptingExecutor),
        None if executor.head is None else _facts(executor.head),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
