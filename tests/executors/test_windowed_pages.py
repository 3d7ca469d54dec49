"""Pages of layers that see only a window, on each device."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined, assignment, return-value"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tiny_files import GREEDY, SMALL, page_table

from devices import load_on
from gguf_writer import write_gguf
from heddle.errors import (
    HeddleError,
)
from heddle.step import (
    Binding,
    Chunk,
    PageCopy,
    StepPlan,
    StepResult,
    WindowPages,
)
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.tiny.gemma3 import TinyGemma3
from models.window_pages import windows_of
from steps import execute

if TYPE_CHECKING:
    from heddle.executor import Executor

pytestmark = pytest.mark.usefixtures("masks_in_time")


WINDOWED = TinyGemma3("windowed", heads=4, kv_heads=2, head_dim=16, layers=7, window=40)
LONG = [(7 * i * i + 3 * i) % 31 + 1 for i in range(150)]


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> GGUFCheckpoint:
    path = tmp_path_factory.mktemp("model") / "windowed.gguf"
    metadata = WINDOWED.metadata() | {"gemma3.context_length": 512}
    return GGUFCheckpoint.open(write_gguf(path, metadata, WINDOWED.tensors()))


def long_prompt(executor: Executor, step: int) -> StepResult:
    """Compute LONG in chunks that hold only the pages they attend to. Return the last result."""
    bindings, result = (Binding(0, replace(GREEDY, logprobs=5), LONG, []),), StepResult(())
    for start in range(0, len(LONG), step):
        end = min(start + step, len(LONG))
        chunk = windowed_chunk(executor, start, end)
        result, bindings = execute(executor, StepPlan(bindings, (chunk,))), ()
    return result


def windowed_chunk(executor: Executor, start: int, end: int) -> Chunk:
    windows = windows_of(executor.memory, start, end)
    sample = end == len(LONG)
    return Chunk(0, start, LONG[start:end], page_table(0, end), sample, windows=windows)


def test_released_windowed_pages_change_no_bit(device, windowed):
    config = replace(SMALL, kv_cache=8 << 20)
    whole = load_on(device, windowed, replace(config, batch_tokens=512))
    giving = load_on(device, windowed, replace(config, batch_tokens=16))
    assert not whole.memory.windows
    assert giving.memory.windows
    assert whole.page_format != giving.page_format
    assert long_prompt(giving, 16) == long_prompt(whole, len(LONG)) == long_prompt(giving, 7)


def test_a_page_of_each_group_is_read_written_and_copied(device, windowed):
    executor = load_on(device, windowed, replace(SMALL, kv_cache=8 << 20, batch_tokens=16))
    expected = long_prompt(executor, 16)
    chunk = windowed_chunk(executor, 144, 150)
    (window,) = chunk.windows
    content = executor.read_page(chunk.pages[-1], [window.pages[-1]])
    assert len(content) == executor.memory.token_page_bytes
    free = next(i for i in range(executor.memory.windows[0].pages) if i not in window.pages)
    executor.write_page(10, content, [free])
    moved = replace(
        chunk,
        pages=[*chunk.pages[:-1], 10],
        windows=[WindowPages(window.first, [*window.pages[:-1], free])],
    )
    assert execute(executor, StepPlan((), (moved,))) == expected
    executor.write_page(10, bytes(len(content)), [window.pages[-1]])
    copies = (PageCopy(chunk.pages[-1], 10), PageCopy(free, window.pages[-1], window=0))
    back = replace(chunk, pages=moved.pages)
    assert execute(executor, StepPlan((), (back,), copies)) == expected


def test_a_plan_without_pages_that_a_window_reaches_is_refused(device, windowed):
    executor = load_on(device, windowed, replace(SMALL, kv_cache=8 << 20, batch_tokens=16))
    expected = long_prompt(executor, 16)
    chunk = windowed_chunk(executor, 144, 150)
    (window,) = chunk.windows
    for bad in (
        [],
        [WindowPages(window.first + 1, window.pages[1:])],
        [WindowPages(window.first, window.pages[:-1])],
        [WindowPages(window.first, [*window.pages[:-1], 10**6])],
    ):
        with pytest.raises(HeddleError, match="refused"):
            execute(executor, StepPlan((), (replace(chunk, windows=bad),)))
    assert execute(executor, StepPlan((), (chunk,))) == expected
