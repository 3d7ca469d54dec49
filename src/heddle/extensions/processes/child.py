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
from heddle.errors import ModelFileError
from heddle.extensions.processes.children.channel import ChannelClosedError, Life
from heddle.extensions.processes.children.program import serve_parent
from heddle.extensions.processes.children.versions import files_digest
from heddle.extensions.processes.edits import GivenEdits
from heddle.extensions.processes.messages import (
    Answer,
    Call,
    Facts,
    Kind,
    LoadOrder,
    decode,
    encode,
    encode_answer,
)
from heddle.extensions.processes.plans import PlanReader, write_result
from heddle.extensions.processes.rules import RulesReader
from heddle.models.families import family_of
from heddle.step import Executor, WarmingExecutor
from heddle.weights.formats import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.extensions.processes.children.channel import Channel
    from heddle.step import DeviceMemory


_log = logging.getLogger(__name__)


class GuestExecutor(Executor, Protocol):
    """An executor that can run in a process of its own."""

    def use_edits(self, edits: EditSource) -> None:
        """Take edits of logits from there. This is called before the first step."""
        ...


class _Log(logging.Handler):
    """Sends records to the log of the engine's process."""

    def __init__(self, channel: Channel, level: int) -> None:
        super().__init__(level)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(ChannelClosedError):
            text = self.format(record)
            self._channel.send(Kind.LOG, encode((record.name, record.levelno, text)))


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

    def __init__(self, channel: Channel, executor: GuestExecutor) -> None:
        self._channel = channel
        self._executors: list[Any] = [executor, executor.head]
        self._memory = MemoryReader(executor)
        self._edits = GivenEdits()
        executor.use_edits(self._edits)
        self._failures: dict[int, Answer] = {}  # of steps that were refused, by executor
        self._plans = PlanReader(RulesReader())
        self._messages: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the engine's process asks for the end."""
        self._executors[0].watch(self._give_up)
        threading.Thread(target=self._receive, name="heddle-messages", daemon=True).start()
        while True:
            kind, content = self._messages.get()
            if kind == Life.CLOSE:
                self._executors[0].close()
                return
            if kind == Kind.SUBMIT:
                self._submit(content)
            elif kind == Kind.COLLECT:
                self._collect(content[0])
            elif kind == Kind.CALL:
                self._channel.send(Kind.ANSWER, encode_answer(self._call(decode(content))))
            else:
                raise ValueError(f"the engine's process sent a message of kind {kind}")

    def _receive(self) -> None:
        """Receive messages until the engine's process ends. Then this process ends too."""
        try:
            while True:
                kind, content = self._channel.receive()
                if kind == Kind.EDITS:
                    self._edits.give(decode(content))
                elif kind == Kind.ABANDON:
                    self._executors[0].abandon()
                    self._edits.give(None)
                else:
                    self._messages.put((kind, content))
        except ChannelClosedError:
            pass
        except Exception:
            _log.exception("messages cannot be received")
        finally:
            os._exit(1)

    def _give_up(self, problem: str) -> None:
        """Tell the engine's process that the executor has failed. It ends this process."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(Life.FAILED, problem.encode())

    def _submit(self, content: bytes) -> None:
        """Begin a step. An executor that does not run ahead computes it now."""
        number, self._edits.step, plan = self._plans.read(content)
        executor = self._executors[number]
        try:
            executor.submit(plan)
        except Exception as error:
            self._failures[number] = _error(error)
        if not executor.runs_ahead:
            self._collect(number)

    def _collect(self, number: int) -> None:
        """Send the result of the oldest step. A step that was refused ended all before it, too."""
        executor = self._executors[number]
        answer = self._failures.pop(number, None)
        if answer is None:
            try:
                result = write_result(executor.collect())
                answer = Answer((executor.compute_seconds, self._memory.newer(), result))
            except Exception as error:
                answer = _error(error)
        self._channel.send(Kind.RESULT, bytes([number]) + encode_answer(answer))

    def _report(self, done: int) -> None:
        self._channel.send(Kind.PROGRESS, encode(done))

    def _call(self, call: Call) -> Answer:
        arguments = [memoryview(one) if isinstance(one, bytes) else one for one in call.arguments]
        if call.method == "warm_up":
            arguments = [self._report]
        try:
            value = getattr(self._executors[call.executor], call.method)(*arguments)
        except Exception as error:
            return _error(error)
        return Answer(bytes(value) if isinstance(value, memoryview) else value)


def main(descriptor: int) -> None:
    """Serve the engine's process until it closes the channel."""
    serve_parent(descriptor, _serve)


def _serve(channel: Channel) -> None:
    kind, content = channel.receive()
    if kind != Kind.LOAD:
        return
    order: LoadOrder = decode(content)
    logging.getLogger("heddle").setLevel(order.level)
    logging.getLogger("heddle").addHandler(_Log(channel, order.level))
    try:
        executor = _load(channel, order)
        server = _Server(channel, executor)
        answer = Answer(_facts(executor))
    except Exception as error:
        channel.send(Kind.ANSWER, encode_answer(_error(error)))
        return
    channel.send(Kind.ANSWER, encode_answer(answer))
    server.run()


def _load(channel: Channel, order: LoadOrder) -> GuestExecutor:
    with open_checkpoint(order.path, None, family_of) as checkpoint:
        if files_digest(checkpoint) != order.files:
            raise ModelFileError(
                f"{order.path} changed while it was loaded; load it again once it is whole",
                field="file",
            )
        executor: GuestExecutor = refer(order.load)(
            checkpoint,
            order.config,
            lambda loaded: channel.send(Kind.PROGRESS, encode(loaded)),
            **order.options,
        )
        return executor


def _error(error: Exception) -> Answer:
    """The answer that raises `error`. Its traceback here is for the log of the engine's process."""
    error.add_note(
        "in the process of the device:\n" + "".join(traceback.format_tb(error.__traceback__))
    )
    return Answer(None, error)


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
        None if executor.head is None else _facts(executor.head),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
