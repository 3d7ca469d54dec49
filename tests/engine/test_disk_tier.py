"""The disk tier as users of an engine see it: what a restart keeps, and what may go wrong."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor, solo_output
from fake_model import FakeTokenizer, fake_model
from heddle.config import EngineConfig
from heddle.disk import directory
from heddle.disk.tier import DiskStats, DiskTier
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import ConfigError, EngineClosedError
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import SlotState
from heddle.state import PAGE_TOKENS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from heddle.outputs import Delta, Output

    Start = Callable[..., Engine]

PROMPT = "the sea is blue and the sky is as well and so are the hills in the evening"
PAGES = (len(PROMPT) - 1) // PAGE_TOKENS


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, **({"max_tokens": 4} | fields))


def right(output: Output, prompt: str = PROMPT) -> bool:
    said = solo_output(FakeTokenizer().encode(prompt), params(), 512)
    return [token.token for token in output.tokens] == said


def disk(engine: Engine) -> DiskStats:
    stats = engine.snapshot().prefix_cache.disk
    assert stats is not None
    return stats


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts engines on one directory, and closes them after the test."""
    # The tier does not give up on a slow disk or machine.
    monkeypatch.setattr("heddle.disk.tier.PATIENCE", PATIENCE)
    monkeypatch.setattr("heddle.disk.tier._CLOSE_SECONDS", PATIENCE)
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    engines = []

    def starter(executor: FakeExecutor | None = None, **settings: Any) -> Engine:
        model = fake_model(executor or FakeExecutor(), path=weights)
        settings = {"prefix_cache_dir": str(tmp_path / "cache")} | settings
        engines.append(Engine(model, EngineConfig(**settings)))
        return engines[-1]

    yield starter
    for engine in engines:
        engine.model.executor.gate.set()  # type: ignore[attr-defined]
        engine.close()


def test_pages_of_an_abandoned_step_are_not_kept(start: Start) -> None:
    """The engine is closed during the second step, when half of the prompt is computed."""
    executor = FakeExecutor()
    engine = start(executor, batch_tokens=PAGE_TOKENS + 8)
    begun = threading.Event()

    def before_step(step: int) -> None:
        executor.gate.clear()
        executor.entered.clear()
        begun.set()

    executor.before_step = before_step
    first, copy = Collector(), Collector()
    engine.submit(PROMPT, params(), first)
    engine.submit(PROMPT, params(), copy)  # follows the first request
    assert begun.wait(PATIENCE)
    assert executor.entered.wait(PATIENCE)
    engine.close()
    for collector in (first, copy):
        with pytest.raises(EngineClosedError):
            collector.wait()
    assert executor.steps == 1
    with start() as engine:
        again = engine.complete(PROMPT, params())
    assert right(again)
    assert again.usage.cached_tokens == PAGE_TOKENS


def test_a_restart_finds_the_saved_prefix(start: Start) -> None:
    with start() as engine:
        first = engine.complete(PROMPT, params())
        assert disk(engine) == DiskStats(True, None, 0, 0, 4 << 30, 0, 0, 0, 0, 0)
    with start() as engine:
        again = engine.complete(PROMPT, params())
        then = engine.complete(PROMPT, params())
        stats = engine.snapshot().prefix_cache
    assert all(right(output) for output in (first, again, then))
    found = [output.usage.cached_tokens for output in (first, again, then)]
    assert found == [0, PAGES * PAGE_TOKENS, len(PROMPT) - 1]
    assert stats.disk is not None
    assert (stats.disk.hits, stats.disk.restored_tokens) == (1, PAGES * PAGE_TOKENS)
    assert (stats.disk.files, stats.hits, stats.misses) == (PAGES, 2, 0)


def test_the_disk_continues_a_hit_that_ends_inside_a_page(start: Start) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    with start() as engine:
        begin = PROMPT[: PAGE_TOKENS + 8]
        outputs = [engine.complete(prompt, params()) for prompt in (begin, PROMPT)]
        assert right(outputs[0], begin)
        assert right(outputs[1])
        found = [output.usage.cached_tokens for output in outputs]
        assert found == [PAGE_TOKENS, PAGES * PAGE_TOKENS]


def test_evicted_pages_are_restored(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Semaphore(0)
    write = directory.PageDirectory.write

    def count(*arguments: Any) -> None:
        write(*arguments)
        written.release()

    monkeypatch.setattr(directory.PageDirectory, "write", count)
    engine = start(FakeExecutor(pages=4), slots=1)
    for prompt in (PROMPT, PROMPT[::-1]):
        assert right(engine.complete(prompt, params()), prompt)
    assert all(written.acquire(timeout=60) for _ in range(PAGES))
    again = engine.complete(PROMPT, params())
    assert right(again)
    assert again.usage.cached_tokens == disk(engine).restored_tokens == PAGES * PAGE_TOKENS
    assert engine.snapshot().prefix_cache.evictions > 0


def test_simultaneous_requests_restore_a_prefix_once(start: Start) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    engine = start(slots=4)
    collectors = [Collector() for _ in range(4)]
    engine.submit_many((PROMPT, params(), collector) for collector in collectors)
    assert all(right(collector.wait()) for collector in collectors)
    engine.close()
    assert (disk(engine).hits, disk(engine).restored_tokens) == (1, PAGES * PAGE_TOKENS)
    tails = 4 * (len(PROMPT) - PAGES * PAGE_TOKENS)
    assert engine.snapshot().computed_prompt_tokens <= tails


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event; the disk reads nothing before it is set."""
    gate = threading.Event()
    read = directory.PageDirectory.read

    def wait(self: directory.PageDirectory, name: str) -> bytes:
        assert gate.wait(60)
        return read(self, name)

    monkeypatch.setattr(directory.PageDirectory, "read", wait)
    return gate


def test_a_model_whose_file_is_gone_is_served_without_a_disk_tier(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.gguf").unlink()
    engine = start()
    assert right(engine.complete(PROMPT, params()))
    assert engine.snapshot().prefix_cache.disk is None
    assert "without its disk tier: [Errno 2]" in caplog.text
    directory.PageDirectory(tmp_path / "cache", 1000).close()


def test_a_cancel_does_not_wait_for_the_disk(
    start: Start, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.engine.loop.PATIENCE", 2 * PATIENCE)
    with start() as engine:
        engine.complete(PROMPT, params())
    waits, begin = threading.Event(), DiskTier.begin

    def begun(*arguments: Any) -> None:
        begin(*arguments)
        waits.set()

    monkeypatch.setattr(DiskTier, "begin", begun)
    engine = start(slots=2)
    ends = [threading.Event(), threading.Event()]

    def sink(end: threading.Event) -> Callable[[Delta], None]:
        return lambda delta: end.set() if delta.finish is FinishReason.CANCELLED else None

    tickets = engine.submit_many((PROMPT, params(), sink(end)) for end in ends)
    assert waits.wait(PATIENCE)
    for ticket, end in zip(tickets, ends, strict=True):
        ticket.cancel()
        assert end.wait(PATIENCE / 4), "the disk does not answer so soon"
    slow_disk.set()


def test_other_requests_run_while_one_waits_for_the_disk(
    start: Start, slow_disk: threading.Event
) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    engine = start(slots=2)
    collector = Collector()
    engine.submit(PROMPT, params(), collector)
    assert right(engine.complete("something else", params()), "something else")
    assert engine.snapshot().slots[0].state is SlotState.WAITING_FOR_PREFIX
    slow_disk.set()
    assert right(collector.wait())
    assert disk(engine).restored_tokens == PAGES * PAGE_TOKENS


@pytest.mark.parametrize("what", ["cancel", "flush", "switch", "close"])
def test_a_restore_ends_early_without_harm(
    start: Start, slow_disk: threading.Event, what: str
) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    engine = start(slots=1)
    collector = Collector()
    ticket = engine.submit(PROMPT, params(), collector)
    if what == "cancel":
        ticket.cancel()
        slow_disk.set()
    elif what == "flush":
        engine.flush_prefix_cache()
        slow_disk.set()
        assert right(collector.wait())
        assert disk(engine).files == 0
    elif what == "switch":
        engine.set_prefix_cache(False)
        slow_disk.set()
        assert right(collector.wait())
    else:
        closing = threading.Thread(target=engine.close)
        closing.start()
        slow_disk.set()
        closing.join(60)
    if what != "close":
        assert right(engine.complete(PROMPT, params()))


def test_a_disk_that_does_not_answer_ends_the_tier(
    start: Start, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    monkeypatch.setattr("heddle.disk.tier.PATIENCE", 0.0)
    monkeypatch.setattr("heddle.engine.loop.PATIENCE", 0.001)
    engine = start()
    output = engine.complete(PROMPT, params())
    assert right(output)
    assert output.usage.cached_tokens == 0
    assert "not read" in (disk(engine).reason or "")
    slow_disk.set()


def test_a_damaged_file_costs_only_its_own_tokens(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as engine:
        engine.complete(PROMPT, params())
    for file in (tmp_path / "cache").glob("*.page"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with start() as engine:
        output = engine.complete(PROMPT, params())
        assert right(output)
        assert output.usage.cached_tokens == 0
        assert disk(engine).errors == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_second_engine_on_the_directory_runs_without_a_tier(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start(), start()
    assert "in use by another process" in caplog.text
    assert second.snapshot().prefix_cache.disk is None
    assert right(second.complete(PROMPT, params()))
    first.close()
    assert disk(start()).enabled


def test_a_failed_engine_saves_no_pages(start: Start) -> None:
    executor = FakeExecutor()
    engine = start(executor)
    engine.complete(PROMPT, params())

    def fail(step: int) -> None:
        raise RuntimeError("broken")

    executor.before_step = fail
    for _ in range(3):
        with pytest.raises(Exception, match="broken"):
            engine.complete(PROMPT, params())
    engine.close()
    assert disk(engine).files == 0


def test_close_saves_the_pages_of_running_requests(start: Start) -> None:
    executor = FakeExecutor()
    engine = start(executor)
    collector = Collector()
    steps = PAGE_TOKENS
    executor.before_step = lambda step: executor.gate.clear() if step == steps else None
    engine.submit(PROMPT, params(max_tokens=400), collector)
    while executor.steps <= steps:
        assert executor.entered.wait(60)
    closing = threading.Thread(target=engine.close)
    closing.start()
    executor.gate.set()
    closing.join(60)
    assert disk(engine).files >= (len(PROMPT) + steps - 1) // PAGE_TOKENS


def test_an_engine_closes_despite_a_bug_in_the_tier(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DiskTier, "close", None)
    executor = FakeExecutor()
    start(executor).close()
    assert executor.closed
    assert "not closed properly" in caplog.text


def test_an_unusable_directory_is_refused_as_a_setting(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_dir"):
        start(prefix_cache_dir=str(tmp_path / "model.gguf"))
