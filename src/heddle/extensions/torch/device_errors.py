"""What torch and Triton raise where a device fails."""

from __future__ import annotations

import sys


def device_errors() -> tuple[type[Exception], ...]:
    """The types of these errors.

    A kernel that needs more of a GPU than there is (`OutOfResources`), or that cannot be compiled
    (`PTXASError`), raises a TritonError, which is no RuntimeError. Without a kernel, Triton is not
    imported.
    """
    triton = sys.modules.get("triton.errors")
    return (RuntimeError, MemoryError, *([] if triton is None else [triton.TritonError]))
