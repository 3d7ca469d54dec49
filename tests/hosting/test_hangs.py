"""An engine whose step hangs is replaced, and its requests go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fake_loads import until
from heddle.config import EngineConfig
from heddle.engine import thread as thread_module
from heddle.engine.health import HealthState
from heddle.engine.observation.watchdog import LONG
from resumes import MIXED, Timer, load_again, params, submit_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.engine import Engine

LIMIT = 100
CONFIG = EngineConfig(watchdog=LIMIT)


class Hang:
    """Lets a step of an engine hang, in `submit` or in `collect`, until `end` is set.

    The engine's clock is the test's.
    """

    made: list[Hang]

    def __init__(self, engine: Engine, step: int, where: str = "before_step") -> None:
        self.now, self.step = 1000.0, step
        self.arrived, self.end = threading.Event(), threading.Event()
        self.thread = engine.thread
        self._watchdog = engine.thread._watchdog
        self._watchdog._clock = engine.thread._loop.heartbeat._clock = lambda: self.now
        self._watchdog._looked_at = self.now
        setattr(engine.model.executor, where, self._hang)
        Hang.made.append(self)

    def _hang(self, step: int) -> None:
        if step == self.step:
            self.arrived.set()
            until(self.end.is_set)

    def last(self, limits: float) -> None:
        """Let it hang for so many times the limit of the watchdog."""
        until(self.arrived.is_set)
        for _ in range(int(4 * limits)):
            self.now += LIMIT / 4
            self._watchdog.look()


@pytest.fixture(autouse=True)
def hangs(make: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends all hangs before `make` closes the registries."""
    Hang.made = []
    monkeypatch.setattr(thread_module, "_left_behind", [])
    yield
    for hang in Hang.made:
        hang.end.set()


@pytest.fixture
def expected(make) -> list[object]:
    return [end.result() for end in submit_all(make().load("one"))]


def test_a_step_that_hangs_is_abandoned(make, loads, expected) -> None:
    registry = make()
    engine = registry.load("one", config=CONFIG)
    hang, executor = Hang(engine, step=-1), loads.executors[-1]

    def wait_at_gate(step: int) -> None:
        if step == 4:
            executor.entered.clear()
            executor.gate.clear()  # `abandon` opens it again
            hang.arrived.set()

    executor.before_submit = wait_at_gate
    ends = submit_all(engine)
    until(hang.arrived.is_set)
    until(executor.entered.is_set)
    hang.last(2)
    load_again(loads)
    assert [end.result() for end in ends] == expected
    assert "it made no progress, and was abandoned" in str(engine.health.poison)
    assert executor.closed


@pytest.mark.parametrize("where", ["before_submit", "before_step"])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_thread_that_hangs_is_left_behind(make, loads, expected, where, step) -> None:
    registry = make()
    engine = registry.load("one", config=CONFIG)
    engine.model.executor.abandon = lambda: None  # it cannot abandon a step
    hang = Hang(engine, step, where)
    ends = submit_all(engine)
    hang.last(LONG + 2)
    health = engine.health
    assert health.state is HealthState.POISONED
    assert "memory are left behind" in health.poison.reason
    turn = hang.thread._loop.turn
    assert turn._turns._holder is not turn
    load_again(loads)
    assert [end.result() for end in ends] == expected
    deltas = [len(end.deltas) for end in ends]
    engine.close()  # does not wait for the thread
    hang.end.set()
    hang.thread._thread.join()
    assert (engine.model.executor.closed, engine.health) == (True, health)
    assert [len(end.deltas) for end in ends] == deltas
    assert registry.engine("one").complete("hello", params()).usage.completion_tokens == 12
    figures = registry.engine("one").snapshot()
    assert (figures.running, figures.queue_depth, figures.pages_used) == (0, 0, 0)


def test_at_most_one_thread_is_left_behind(make, loads) -> None:
    registry = make()
    first = registry.load("one", config=CONFIG)
    hang = Hang(first, 1)
    ends = submit_all(first)
    hang.last(LONG + 2)
    load_again(loads)
    assert len([end.result() for end in ends]) == len(MIXED)
    second = registry.engine("one")
    again = Hang(second, loads.executors[-1].steps + 1)
    ends = submit_all(second)
    again.last(LONG + 2)
    assert (second.health.state, second.health.live) == (HealthState.STUCK, False)
    assert not Timer.made
    again.end.set()  # the executor has abandoned all steps
    load_again(loads)
    assert len([end.result() for end in ends]) == len(MIXED)


def test_a_thread_that_has_gone_on_keeps_its_requests(make) -> None:
    engine = make().load("one", config=CONFIG)
    hang = Hang(engine, 2)
    ends = submit_all(engine)
    until(hang.arrived.is_set)
    loop = engine.thread._loop
    beat = loop.heartbeat.now
    hang.end.set()
    ends[0].result()
    engine.thread._give_up_step(beat, 1000.0, lost=True)
    assert not loop.heartbeat.left_behind
    assert engine.health.state is HealthState.OK


def test_without_recovery_a_step_may_hang(make) -> None:
    engine = make(auto_recover=0).load("one", config=CONFIG)
    hang = Hang(engine, 2)
    ends = submit_all(engine)
    hang.last(LONG + 2)
    assert (engine.health.state, engine.health.live) == (HealthState.STUCK, False)
    hang.end.set()
    assert len([end.result() for end in ends]) == len(MIXED)
