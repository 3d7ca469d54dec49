"""The prefix cache as users of an engine see it: figures, switch, flush."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from cache_integrity import check_cache
from fake_executor import FakeExecutor, solo_output
from fake_model import FakeTokenizer
from heddle.engine.streaming.blocking import Collector
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import SlotState

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.outputs import Output

PROMPT = "the sea is blue and the sky is as well"


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, **({"max_tokens": 4} | fields))


def right(output: Output, prompt: str = PROMPT) -> bool:
    said = solo_output(FakeTokenizer().encode(prompt), params(), 512)
    return [token.token for token in output.tokens] == said


def test_snapshot_has_the_figures_of_the_prefix_cache(engine: Engine) -> None:
    assert engine.snapshot().prefix_cache.capacity_bytes == 64_000
    first, again = (engine.complete(PROMPT, params()) for _ in range(2))
    other = engine.complete("xyz", params())
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, len(PROMPT) - 1)
    assert right(first)
    assert right(again)
    engine.close()
    snapshot = engine.snapshot()
    stats = snapshot.prefix_cache
    assert (stats.hits, stats.misses) == (1, 2)
    assert (stats.query_tokens, stats.hit_tokens) == (2 * len(PROMPT) + 3, len(PROMPT) - 1)
    assert snapshot.computed_prompt_tokens == stats.query_tokens - stats.hit_tokens
    assert stats.cached_tokens == len(PROMPT) + 3 + len(other.tokens) + 3 - 1
    assert (stats.cached_bytes, stats.evictions, stats.enabled) == (3000, 0, True)
    assert snapshot.pages_used == 0, "kept and not used"


@pytest.mark.parametrize("again", [True, False])
def test_a_disabled_prefix_cache_finds_and_keeps_nothing(start, again: bool) -> None:
    engine = start(prefix_cache=again)
    if again:
        engine.complete(PROMPT, params())
        engine.set_prefix_cache(False)
    for _ in range(2):
        output = engine.complete(PROMPT, params())
        assert right(output)
        assert output.usage.cached_tokens == 0
    stats = engine.snapshot().prefix_cache
    assert (stats.enabled, stats.cached_tokens, stats.hits) == (False, 0, 0)
    engine.set_prefix_cache(True)
    for cached in (0, len(PROMPT) - 1):
        assert engine.complete(PROMPT, params()).usage.cached_tokens == cached


def test_a_flush_during_a_step_changes_no_output(start, executor: FakeExecutor) -> None:
    engine = start(batch_tokens=8)
    executor.before_step = lambda step: executor.gate.clear() if step == 1 else None
    collector = Collector()
    engine.submit(PROMPT, params(), collector)
    while executor.steps < 2:
        assert executor.entered.wait(60)
    engine.flush_prefix_cache()
    executor.gate.set()
    assert right(collector.wait())
    assert engine.snapshot().prefix_cache.cached_tokens == 0
    assert engine.complete(PROMPT, params()).usage.cached_tokens == 0
    assert engine.complete(PROMPT, params()).usage.cached_tokens == len(PROMPT) - 1


def test_flush_and_switch_from_many_threads_change_no_output(start, executor: FakeExecutor) -> None:
    engine = start(slots=3, batch_tokens=16, executor=FakeExecutor(pages=8))
    stop = threading.Event()

    def disturb() -> None:
        for turn in range(10**6):
            engine.flush_prefix_cache() if turn % 3 else engine.set_prefix_cache(turn % 2 == 0)
            engine.snapshot()
            if stop.wait(0.0001):
                return

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for _ in range(10):
            prompts = [PROMPT * times for times in (1, 2, 3)]
            collectors = [Collector() for _ in prompts]
            requests = zip(prompts, [params()] * 3, collectors, strict=True)
            engine.submit_many(requests)
            for prompt, collector in zip(prompts, collectors, strict=True):
                assert right(collector.wait(), prompt)
            with engine.thread._lock:
                check_cache(engine.thread._loop.cache)
    finally:
        stop.set()
        disturber.join()


def test_a_slot_snapshot_shows_that_it_waits_for_a_prefix(start, executor: FakeExecutor) -> None:
    engine = start(slots=2, batch_tokens=8)
    seen = []
    executor.before_step = lambda step: seen.append(engine.snapshot().slots[1])
    collectors = [Collector() for _ in range(2)]
    engine.submit_many((PROMPT, params(), collector) for collector in collectors)
    for collector in collectors:
        assert right(collector.wait())
    waiting = -(-(len(PROMPT) - 1) // 8)
    assert [slot.state for slot in seen[:waiting]] == [SlotState.WAITING_FOR_PREFIX] * waiting
    assert seen[waiting].state is SlotState.PREFILLING
    assert seen[-1].cached_tokens == len(PROMPT) - 1
