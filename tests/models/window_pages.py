"""Windowed pages for chunks that a test makes without a cache manager."""

from __future__ import annotations

from heddle.state import StateMemory, pages_for
from heddle.step import WindowPages


def windows_of(memory: StateMemory, start: int, end: int) -> list[WindowPages]:
    """The pages of a sequence that computes positions [start, end). Page ids repeat in turn."""
    windows = []
    for window in memory.windows:
        first = window.first_page(start)
        pages = [number % window.pages for number in range(first, pages_for(end))]
        windows.append(WindowPages(first, pages))
    return windows
