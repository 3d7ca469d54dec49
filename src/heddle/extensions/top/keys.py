"""Keys of the terminal, one by one."""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def pressed_keys() -> Iterator[Callable[[], str]]:
    """A function that returns the keys pressed since its last call.

    It returns nothing if standard input is no terminal, or the system has no `termios`.
    """
    try:
        import termios
        import tty

        number = sys.stdin.fileno()
        former = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, AttributeError):
        yield lambda: ""
        return
    except termios.error:
        yield lambda: ""
        return
    tty.setcbreak(number)
    try:
        yield lambda: _waiting(number)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, former)


def _waiting(number: int) -> str:
    """The keys that wait in a file, which no buffer may hide."""
    ready = select.select([number], [], [], 0)[0]
    return os.read(number, 100).decode("utf-8", "replace") if ready else ""
