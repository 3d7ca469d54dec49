"""Memory of the process, as the allocator keeps it."""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give free memory back to the system, after much of it was used.

    glibc does not do so by itself: after some minutes of large bodies it held 2.2 GB, with 40 MB in
    use.
    """
    if _trim is not None:
        _trim(0)
