"""The watchdog notices an engine thread without progress, and nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from heddle.engine.health import Health, HealthState
from heddle.engine.observation.activity import Heartbeat, Phase, step_allowance
from heddle.engine.observation.watchdog import LONG, Watchdog
from heddle.engine.streaming.blocking import Collector
from heddle.sampling_params import SamplingParams
from heddle.scheduler.pace import Pace
from heddle.step import Chunk, StepPlan

if TYPE_CHECKING:
    from fake_executor import FakeExecutor

LIMIT = 100


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heartbeat(clock: Clock) -> Heartbeat:
    return Heartbeat(clock)


@pytest.fixture
def watchdog(clock: Clock, heartbeat: Heartbeat) -> Watchdog:
    watchdog = Watchdog(heartbeat, threading.current_thread(), "fake", LIMIT, clock)
    watchdog.stop()  # its thread: the tests look
    return watchdog


def pass_time(watchdog: Watchdog, clock: Clock, seconds: float) -> None:
    """Let time pass in small parts, and look after each."""
    for _ in range(20):
        clock.now += seconds / 20
        watchdog.look()


def test_a_long_step_is_stuck_and_then_lost(watchdog, heartbeat, clock, caplog) -> None:
    heartbeat.step = 7
    heartbeat.enter(Phase.COMPUTING, allowance=50.0)
    pass_time(watchdog, clock, LIMIT + 49)
    assert (watchdog.stuck, watchdog.lost, caplog.text) == (False, False, "")
    pass_time(watchdog, clock, 2)
    assert (watchdog.stuck, watchdog.lost) == (True, False)
    assert "fake has made no progress for 150 s: it is computing a step, step 7" in caplog.text
    assert "in pass_time" in caplog.text, "the stack of the thread"
    pass_time(watchdog, clock, (LONG - 1) * LIMIT)
    assert (watchdog.stuck, watchdog.lost) == (True, True)
    assert caplog.text.count("has made no progress") == 2
    heartbeat.enter(Phase.DELIVERING)
    watchdog.look()
    assert (watchdog.stuck, watchdog.lost) == (False, False)
    assert "makes progress again" in caplog.text


def test_an_idle_engine_is_not_stuck(watchdog, heartbeat, clock) -> None:
    heartbeat.enter(Phase.IDLE)
    pass_time(watchdog, clock, 100 * LIMIT)
    assert not watchdog.stuck
    heartbeat.enter(Phase.PLANNING)
    watchdog.look()
    assert not watchdog.stuck


def test_waiting_again_and_again_is_no_progress(watchdog, heartbeat, clock) -> None:
    heartbeat.enter(Phase.DELIVERING)
    for _ in range(30):
        heartbeat.enter(Phase.PLANNING)
        heartbeat.enter(Phase.WAITING)
        pass_time(watchdog, clock, 5)
        heartbeat.enter(Phase.PLANNING)
    assert watchdog.stuck


def test_a_stopped_process_is_not_a_stuck_engine(watchdog, heartbeat, clock) -> None:
    heartbeat.enter(Phase.COMPUTING)
    clock.now += 100 * LIMIT  # no thread ran, or the clock jumped
    watchdog.look()
    assert not watchdog.stuck
    heartbeat.enter(Phase.COMPUTING)
    pass_time(watchdog, clock, LIMIT - 1)
    assert not watchdog.stuck


def test_long_steps_get_more_time() -> None:
    pace = Pace()
    chunks = (
        Chunk(0, 9, [1], [0], sample=True),
        Chunk(1, 0, list(range(600)), [1], sample=False),
    )
    plan = StepPlan((), chunks)
    assert step_allowance(plan, pace) == 601.0
    pace.observe(1, 0, 0.5)
    assert step_allowance(plan, pace) == 601.0
    pace.observe(0, 100, 10.0)  # 0.1 s for a token, and twice as much beside decodes
    assert step_allowance(plan, pace) == pytest.approx(10 * (0.5 + 600 * 0.2))
    assert step_allowance(StepPlan((), chunks[:1]), pace) == pytest.approx(5.0)


def test_the_health_of_an_engine_shows_a_hung_device(start, executor: FakeExecutor) -> None:
    engine = start(watchdog=LIMIT)
    watchdog, clock = engine.thread._watchdog, Clock()
    watchdog._clock = engine.thread._loop.heartbeat._clock = clock
    watchdog._looked_at = clock.now
    executor.gate.clear()
    collector = Collector()
    engine.submit("hello", SamplingParams(max_tokens=2, ignore_eos=True), collector)
    assert executor.entered.wait(60)
    pass_time(watchdog, clock, LIMIT)  # of the first step, the pace knows nothing: 5 s more
    assert engine.health == Health(HealthState.OK)
    assert engine.health.ready
    pass_time(watchdog, clock, 6)
    assert engine.health == Health(HealthState.STUCK)
    assert not engine.health.ready
    pass_time(watchdog, clock, LONG * LIMIT)
    assert engine.health == Health(HealthState.STUCK, live=False)
    executor.gate.set()
    assert collector.wait().usage.completion_tokens == 2
    watchdog.look()
    assert engine.health == Health(HealthState.OK)
    engine.close()
    assert engine.health == Health(HealthState.CLOSED)


def test_a_dead_engine_thread_is_not_live(engine, monkeypatch) -> None:
    monkeypatch.setattr(engine.thread._thread, "is_alive", lambda: False)
    assert engine.health == Health(HealthState.STUCK, live=False)


def test_the_watchdog_ends_with_its_engine(start) -> None:
    before = set(threading.enumerate())
    engine = start(watchdog=LIMIT)
    assert "heddle-watchdog" in {thread.name for thread in set(threading.enumerate()) - before}
    engine.close()
    started = [one for one in threading.enumerate() if one not in before]
    for thread in started:
        thread.join(60)
    assert not [one for one in started if one.is_alive()]
