"""Tries grammars in child processes before this process compiles them.

llguidance cannot be interrupted. A few grammars take minutes in spite of its limits: a schema of 2
kB with forty patterns in `allOf` took more than 200 s. The kernel can limit the time and memory of
a child process. A child uses a vocabulary of single bytes, because the cost of such grammars does
not depend on the vocabulary.

A child also follows each grammar for some tokens. So most grammars with slow masks are refused
here, and not in the middle of an answer.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import lru_cache
from queue import LifoQueue
from typing import TYPE_CHECKING

from heddle.errors import EngineClosedError, GrammarError, GrammarTrialError
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler, first_allowed, last_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from heddle.text.constrained.language import Tokens
    from heddle.token_rules import TokenGrammar

_MEMORY = 3 << 30
"""Bytes of address space of a child. Stack and Python's mappings take half a GB of it."""

_FOLLOWED = 64
"""For how many tokens a child follows a grammar. It follows twice: first by the lowest allowed
token id, then by the highest."""

_CHEAP = 0.1
"""Seconds. If a child needs longer to find an error, its report is final. Otherwise the parent
compiles the grammar and finds the error itself."""

_LONGEST_WAIT = 60.0
"""Seconds of wall time in which a child must start or answer. A stopped child (SIGSTOP, a frozen
container) uses no processor time, so without this bound its request would wait forever. On a busy
machine, the processor time of one trial took 20 s of wall time."""


_CLOSED = "the engine is closed"


class Trial:
    """Tries grammars and remembers the last verdicts. Methods may be called from any thread."""

    def __init__(self, tokens: Tokens, seconds: int = 3, children: int = 2) -> None:
        """Give each grammar `seconds` of processor time. Up to `children` processes run at once."""
        self._seconds = seconds
        self._children = [_Child(tokens, seconds) for _ in range(children)]
        # Last in, first out: a second child starts only when two trials overlap.
        self._free: LifoQueue[_Child] = LifoQueue()
        for child in self._children:
            self._free.put(child)
        self._try_cached = lru_cache(maxsize=64)(self._try)
        self._closed = False

    def close(self) -> None:
        """Kill the children. Checks that run, wait or come later raise EngineClosedError."""
        self._closed = True
        for child in self._children:
            child.close()

    def check(self, grammar: Grammar) -> None:
        """Block until a child has compiled `grammar` or found its error.

        Raises:
            GrammarError: compiling takes too long, or too much memory.
            GrammarTrialError: no child starts, or a child does not answer.
            EngineClosedError: the trial is closed.
        """
        if self._closed:
            raise EngineClosedError(_CLOSED)
        reason = self._try_cached(grammar.kind, grammar.text)
        if reason:
            raise GrammarError(f"{grammar.param} cannot be served: {reason}", param=grammar.param)

    def _try(self, kind: str, text: str) -> str:
        """Why the grammar costs too much; empty if it does not."""
        child = self._free.get()
        try:
            answer = child.answer(kind, text)
            if answer is not None:
                return answer
            return (
                f"compiling it takes more than {self._seconds} s or {_MEMORY >> 30} GB;"
                " send a simpler one"
            )
        finally:
            self._free.put(child)


class _Child:
    """A process that compiles grammars, restarted when it dies. It ends with this object."""

    def __init__(self, tokens: Tokens, seconds: int) -> None:
        self._tokens = tokens
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._end_process: Callable[[], object] = lambda: None
        self._closed = False

    def answer(self, kind: str, text: str) -> str | None:
        """See `_verdict`. None if the grammar kills the child.

        The limit on processor time does not send SIGKILL. After a SIGKILL, a new child tries again.

        Raises:
            GrammarTrialError: no process starts, or it does not answer in time.
            EngineClosedError: the child is closed.
        """
        for _ in range(2):
            process = self._process or self._start()
            answer = self._ask_in_time(process, [kind, text])
            if answer is not None:
                return answer
            if process.returncode != -signal.SIGKILL:
                break
        return None

    def close(self) -> None:
        """Kill the process. Any thread may call this. It takes no lock: a fork could copy it
        locked."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()  # the thread that waits for its answer cleans up

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                process_group=0,  # only the parent gets an interrupt from the keyboard
            )
        except OSError as error:
            raise _not_started(error.strerror or str(error)) from error
        self._end_process = weakref.finalize(self, _end, process)
        if self._closed:  # `close` was called before the process started
            process.kill()
        if self._ask_in_time(process, [self._seconds, _description(self._tokens)]) is None:
            raise _not_started(f"it ended with status {process.returncode}")
        return process

    def _ask_in_time(self, process: subprocess.Popen[bytes], question: object) -> str | None:
        """The answer of the process. None if the process died; this method has then cleaned up.

        Raises:
            GrammarTrialError: the process did not answer in time. This method has killed it.
            EngineClosedError: the child is closed.
        """
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            process.kill()

        clock = threading.Timer(_LONGEST_WAIT, end)
        clock.daemon = True
        clock.start()
        try:
            answer = _ask(process, question)
        finally:
            clock.cancel()
        if answer is None:
            self._end_process()
            self._process = None
            if self._closed:
                raise EngineClosedError(_CLOSED)
            if overdue.is_set():
                raise GrammarTrialError(
                    f"the child process that tries grammars did not answer in {_LONGEST_WAIT:g} s,"
                    " and was killed. Send the request again"
                )
        return answer


def _not_started(reason: str) -> GrammarTrialError:
    return GrammarTrialError(
        f"the child process that tries grammars does not start: {reason}. Give the server more"
        " memory and processes, or send the request later"
    )


def _ask(child: subprocess.Popen[bytes], question: object) -> str | None:
    """The child's answer; None if the child dies before it answers."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
        if line := child.stdout.readline():
            answer: str = json.loads(line)
            return answer
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        with suppress(BrokenPipeError):
            assert pipe is not None
            pipe.close()


def _description(tokens: Tokens) -> dict[str, object]:
    """A description of a vocabulary for the child. It leaves out the texts of ordinary tokens."""
    ids = range(tokens.vocabulary_size)
    return {
        "vocabulary_size": tokens.vocabulary_size,
        "eos_ids": sorted(tokens.eos_ids),
        "specials": {id: tokens.token_text(id) for id in ids if tokens.is_special(id)},
    }


class ByteTokens:
    """A vocabulary of single bytes, with the size and control tokens of another; see `Tokens`."""

    bos_id = None

    def __init__(
        self, vocabulary_size: int, eos_ids: list[int], specials: Mapping[str, str]
    ) -> None:
        self._specials = {int(id): text for id, text in specials.items()}
        self.vocabulary_size = max(vocabulary_size, 256 + len(self._specials))
        self.eos_ids = eos_ids
        free = (id for id in range(self.vocabulary_size) if id not in self._specials)
        self._ids = [id for id, _ in zip(free, range(256), strict=False)]
        self._bytes = {id: bytes([byte]) for byte, id in enumerate(self._ids)}

    def token_bytes(self, id: int, /) -> bytes:
        return self._bytes.get(id, b"")

    def token_text(self, id: int, /) -> str:
        return self._specials.get(id, "")

    def is_special(self, id: int, /) -> bool:
        return id in self._specials

    def control_id(self, text: str, /) -> int | None:
        return next((id for id, one in self._specials.items() if one == text), None)

    def encode(self, text: str, **_: bool) -> list[int]:
        return [self._ids[byte] for byte in text.encode()]


def main() -> None:
    """Answer each line of input with one line, until a limit of the kernel ends the process."""
    import resource  # Windows has no such module

    seconds, tokens = json.loads(sys.stdin.readline())
    compiler, ends = GrammarCompiler(ByteTokens(**tokens), keep=0), tokens["eos_ids"]
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (OSError, ValueError):  # macOS refuses this limit; the limit on processor time remains
        if sys.platform == "linux":
            raise
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print('""', flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        until = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        grammar = Grammar(kind, text)
        print(json.dumps(_verdict(compiler, grammar, ends)), flush=True)


def _verdict(compiler: GrammarCompiler, grammar: Grammar, ends: Collection[int]) -> str:
    """Why the grammar costs too much; empty if it does not, even if it is wrong.

    The parent finds cheap errors itself, because it knows the model's tokens.
    """
    began = time.process_time()
    try:
        _follow(compiler.compile(grammar), ends)
    except GrammarError as error:
        if time.process_time() - began > _CHEAP:
            return error.message.partition(": ")[2]
    return ""


def _follow(compiled: TokenGrammar, ends: Collection[int]) -> None:
    """Make up to `_FOLLOWED` masks. Stop at a token in `ends`."""
    for choose in (first_allowed, last_allowed):
        state, tokens = compiled.begin(), list[int]()
        for _ in range(_FOLLOWED):
            mask = state.next_mask(tokens)
            tokens = [choose(mask)]
            if tokens[0] in ends:
                break


if __name__ == "__main__":
    main()
