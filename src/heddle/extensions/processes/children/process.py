"""A child process, as its parent sees it: it starts, says what it has to say, and ends.

A thread receives its messages. A child that ends, fails, or is silent for too long is killed, so
that nobody waits for it, and the reason stays readable.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from heddle.errors import EngineFailedError
from heddle.extensions.processes.children.channel import (
    Channel,
    ChannelClosedError,
    ChannelSilentError,
)
from heddle.extensions.processes.children.messages import Beat, Close, Failed, Hello
from heddle.extensions.processes.children.versions import program_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.extensions.processes.children.messages import Message
    from heddle.extensions.processes.children.places import Started

    Answers: TypeAlias = "queue.SimpleQueue[Message | None]"

_log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long a child may be silent at least before its first message: a busy machine takes seconds to
start Python and to import."""

GOODBYE_SECONDS = 5.0
"""How long a closed child may take to end before it is killed."""


class ChildProcess:
    """A child. Its messages go to `hear`, in a thread of this object, and to queues from there.

    Any thread may call all methods, but each queue has one reader.
    """

    def __init__(
        self,
        name: str,
        started: Started,
        seconds: float,
        received: Any,
        hear: Callable[[Any], None],
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take over a process.

        Args:
            name: names the child in errors.
            started: its process, and the connection to it.
            seconds: how long it may be silent after its first message.
            received: the union of its messages, except those about its life.
            hear: takes them.
            failed: takes the reason if it ends before `close` or `kill`. It is called once.
        """
        self.name = name
        self._seconds = seconds
        self._hear, self._report = hear, failed
        self._hello: Answers = queue.SimpleQueue()
        self._queues = [self._hello]
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._failed = threading.Event()
        self._closing = threading.Event()
        self._process = started.process
        self._channel: Channel[Message] = Channel(
            started.connection, Hello | Beat | Failed | received
        )
        self._listener = threading.Thread(
            target=self._listen, name=f"heddle {self._process.where}", daemon=True
        )
        self._listener.start()

    def queue(self) -> Answers:
        """A new queue of messages. The end of the child wakes its reader."""
        made: Answers = queue.SimpleQueue()
        self._queues.append(made)
        if self._failed.is_set():
            made.put(None)
        return made

    def greet(self) -> None:
        """Check that the child runs the same program.

        Raises:
            EngineFailedError: it does not, or it has ended.
        """
        hello, expected = self.take(self._hello), program_version()
        if isinstance(hello, Hello) and hello.versions != expected:
            raise self.fail(f"{self.name} runs {hello.versions}, and its parent {expected}")

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            EngineFailedError: the child has failed.
        """
        self._check()
        try:
            self._channel.send(message)
        except ChannelClosedError:
            raise self.error(wait=self._seconds) from None

    def take(self, answers: Answers) -> Message:
        """Wait for the next message of a queue.

        Raises:
            EngineFailedError: the child has failed.
        """
        found = answers.get()
        if found is None:
            answers.put(None)  # for the next call
            raise self.error()
        return found

    def watch(self, failed: Callable[[str], None]) -> None:
        """Let `failed` take the reason from now on, at once if the child has failed already."""
        with self._lock:
            self._report, problem = failed, self._problem
        if problem is not None:
            failed(problem)

    def fail(self, problem: str) -> EngineFailedError:
        """Note the first problem, and kill the child."""
        with self._lock:
            is_first = self._problem is None and not self._closing.is_set()
            if is_first:
                self._problem = problem
        self._end()
        if is_first:
            _log.error("%s", problem)
            self._report(problem)
        return self.error()

    def problem(self, wait: float = 0.0) -> str | None:
        """Why the child failed; None if it has not, after at most `wait` seconds."""
        self._failed.wait(wait)
        return self._problem

    def error(self, wait: float = 0.0) -> EngineFailedError:
        """The error of a child that has failed, or fails within `wait` seconds."""
        return EngineFailedError(self.problem(wait) or f"{self.name} was ended")

    def kill(self) -> None:
        """End the child at once. Nothing is reported. Idempotent."""
        self._closing.set()
        self._end()

    def ask_to_end(self) -> None:
        """Ask the child to end. Its end is no failure from now on."""
        self._closing.set()
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(Close())

    def close(self, seconds: float = GOODBYE_SECONDS) -> None:
        """Wait until the child has ended, and kill it after `seconds`. Idempotent."""
        self._closing.set()
        if self._process.ending(max(0.0, seconds)) is None:
            self._process.kill()
            self._process.ending()
        if threading.current_thread() is not self._listener:
            self._listener.join()
        self._channel.close()

    def _check(self) -> None:
        if self._problem is not None:
            raise self.error()

    def _end(self) -> None:
        self._process.kill()
        self._wake()

    def _wake(self) -> None:
        """Wake all who wait for the child."""
        self._failed.set()
        for answers in self._queues:
            answers.put(None)

    def _listen(self) -> None:
        """Receive messages until the child has ended."""
        most = max(self._seconds, START_SECONDS)
        while True:
            try:
                message = self._channel.receive(most)
                most = self._seconds
                if isinstance(message, Hello):
                    self._hello.put(message)
                elif isinstance(message, Failed):
                    self.fail(f"{self.name} failed: {message.problem}")
                elif not isinstance(message, Beat):
                    self._hear(message)
            except ChannelSilentError:
                self.fail(f"{self._who} has been silent for more than {most:g} s")
                return
            except ChannelClosedError:
                self._lost()
                return
            except Exception as error:
                _log.exception("a message of %s cannot be read", self._who)
                self.fail(f"a message of {self._who} cannot be read: {error}")
                return

    def _lost(self) -> None:
        """The process has ended, or is about to."""
        if self._closing.is_set():
            self._wake()
            self._process.ending(GOODBYE_SECONDS)
            self._channel.close()
            return
        how = self._process.ending(GOODBYE_SECONDS)
        self.fail(f"{self._who} {how or 'closed its channel'}")

    @property
    def _who(self) -> str:
        return f"{self.name} ({self._process.where})"


def close_all(children: list[ChildProcess], seconds: float = GOODBYE_SECONDS) -> None:
    """End all children and wait for them, at most `seconds` before they are killed. Idempotent."""
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + seconds
    for child in children:
        child.close(deadline - time.monotonic())
