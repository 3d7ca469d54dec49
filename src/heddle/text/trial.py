"""Grammars tried in a child process before this one compiles them.

What llguidance does cannot be interrupted, and a few grammars take it minutes, whatever its limits:
a schema of 2 kB with forty patterns in `allOf` took more than 200 s. A child can be bounded by the
kernel. It has a vocabulary of single bytes, since what is dear does not depend on it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from heddle.errors import GrammarError
from heddle.text.grammar import GrammarCompiler
from heddle.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.text.grammar import Tokens

_MEMORY = 3 << 30
"""Bytes of address space of the child, of which half a GB is stack and what Python maps."""


class Trial:
    """Tries grammars, one at a time. The child lives until this object goes, or it does."""

    def __init__(self, tokens: Tokens, seconds: int = 3) -> None:
        """`seconds` of processor time are for one grammar."""
        self._tokens = tokens
        self._seconds = seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._end_child: Callable[[], object] = lambda: None  # once; also when this object goes
        self._passed = lru_cache(maxsize=64)(self._try)

    def check(self, grammar: Grammar) -> None:
        """Return if compiling it ends in time, well or not. From any thread; blocks.

        Raises:
            GrammarError: it takes too long, or too much memory.
        """
        with self._lock:
            self._passed(grammar.kind, grammar.text, grammar.param)

    def _try(self, kind: GrammarKind, text: str, param: str) -> None:
        child = self._child = self._child or self._start()
        if not _asked(child, [kind.value, text]):
            self._end_child()
            self._child = None
            raise GrammarError(
                f"{param} cannot be served: compiling it takes more than {self._seconds} s or"
                f" {_MEMORY >> 30} GB; send a simpler one",
                param=param,
            )

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,  # an interrupt from the keyboard is for the parent
        )
        self._end_child = weakref.finalize(self, _end, child)
        _asked(child, [self._seconds, _described(self._tokens)])
        return child


def _asked(child: subprocess.Popen[bytes], question: object) -> bool:
    """Whether the child lived to answer."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
        return child.stdout.readline() != b""
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        with suppress(BrokenPipeError):
            assert pipe is not None
            pipe.close()


def _described(tokens: Tokens) -> dict[str, object]:
    """What the child is told of a vocabulary: all but its texts."""
    ids = range(tokens.vocabulary_size)
    return {
        "vocabulary_size": tokens.vocabulary_size,
        "eos_ids": sorted(tokens.eos_ids),
        "specials": {id: tokens.token_text(id) for id in ids if tokens.is_special(id)},
    }


class ByteTokens:
    """A vocabulary with another's size and control tokens, and single bytes; see `Tokens`."""

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
    """Answer each line of input with one, as long as the kernel lets it."""
    import resource  # there is none on Windows

    seconds, tokens = json.loads(sys.stdin.readline())
    compiler = GrammarCompiler(ByteTokens(**tokens), keep=0)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        until = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        with suppress(GrammarError):
            compiler.compile(Grammar(GrammarKind(kind), text))
        print(flush=True)


if __name__ == "__main__":
    main()
