"""Turns panics of libraries written in Rust into Heddle's errors.

A panic reaches Python as a `PanicException`, which derives from `BaseException`: `except Exception`
does not catch it. Each library has a class of its own, and exports none.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.errors import HeddleError


@contextmanager
def panics_as(error: Callable[[str], HeddleError]) -> Iterator[None]:
    """Raise what `error` makes of a panic's message if the body panics."""
    try:
        yield
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise error(str(panic)) from None
