"""Engines take turns: one computes at a time, and busy ones get equal shares of the time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.turns import GRACE, IDLE, SLICE, Turn, Turns
from heddle.sampling_params import SamplingParams
from patience import PATIENCE


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Table:
    """Some engines with steps of fixed lengths, played in one thread."""

    def __init__(self, steps: list[float]) -> None:
        self.clock = Clock()
        self.turns = Turns(self.clock)
        self.steps = {self.turns.turn(): seconds for seconds in steps}

    def play(self, until: float) -> list[float]:
        """Seconds that each engine computes, if all of them always have work."""
        spent = dict.fromkeys(self.steps, 0.0)
        while self.clock.now < until:
            turn = self._next()
            self.clock.now += self.steps[turn]
            spent[turn] += self.steps[turn]
            turn.give()
            self.clock.now += GRACE / 10  # planning
        return list(spent.values())

    def _next(self) -> Turn:
        """The engine that the turns choose among all, which wait."""
        self.turns._waiting.extend(self.steps)
        chosen = self.turns.next()
        self.turns._waiting.clear()
        assert chosen is not None
        assert chosen.take_now()
        return chosen


@given(st.lists(st.floats(0.0005, 0.2), min_size=2, max_size=4))
def test_busy_engines_get_equal_shares_of_the_time(steps: list[float]) -> None:
    total = 400 * max(steps)
    spent = Table(steps).play(total)
    longest = max(steps) + SLICE
    assert max(spent) - min(spent) <= 2 * longest


def test_a_single_engine_never_waits() -> None:
    clock = Clock()
    turn = Turns(clock).turn()
    for _ in range(100):
        assert turn.take_now()
        clock.now += 0.005
        turn.give()


def test_an_engine_keeps_its_claim_only_for_a_moment() -> None:
    clock = Clock()
    turns = Turns(clock)
    first, second = turns.turn(), turns.turn()
    assert first.take_now()
    assert not second.take_now()  # the first computes
    clock.now += SLICE / 2
    first.give()
    assert not second.take_now()  # the first plans its next step
    clock.now += GRACE * 1.01
    assert second.take_now()


def test_an_engine_without_a_rival_begins_a_new_slice_after_each() -> None:
    clock = Clock()
    turns = Turns(clock)
    first, second = turns.turn(), turns.turn()
    for seconds in (SLICE, SLICE / 2):
        assert first.take_now()
        clock.now += seconds
        first.give()
    assert not second.take_now()


def test_an_engine_begins_its_slice_when_another_has_computed() -> None:
    clock = Clock()
    turns = Turns(clock)
    first, second = turns.turn(), turns.turn()
    for turn in (first, second):
        clock.now += GRACE * 1.01
        assert turn.take_now()
        clock.now += SLICE * 0.6
        turn.give()
    first.used, second.used = 0.0, 1.0
    assert not first.take_now()


def test_an_engine_that_has_withdrawn_keeps_no_claim() -> None:
    clock = Clock()
    turns = Turns(clock)
    first, second = turns.turn(), turns.turn()
    assert first.take_now()
    clock.now += SLICE / 2
    first.give()
    first.withdraw()
    assert not first.take_now()
    assert second.take_now()


def test_an_idle_engine_saves_up_no_time() -> None:
    clock = Clock()
    turns = Turns(clock)
    idle, busy = turns.turn(), turns.turn()
    for _ in range(100):
        assert busy.take_now()
        clock.now += 0.1
        busy.give()
    clock.now += IDLE * 2
    assert busy.take_now()
    assert not idle.take_now()
    assert idle.used >= busy.used


def test_an_engine_that_stops_waits_no_longer() -> None:
    turns = Turns()
    first, second = turns.turn(), turns.turn()
    first.take()
    waiting = threading.Thread(target=second.take)
    waiting.start()
    second.withdraw()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    second.give()  # no effect: it has no turn
    assert not second.take_now()


def test_a_waiting_engine_goes_when_the_other_ends() -> None:
    turns = Turns()
    first, second = turns.turn(), turns.turn()
    first.take()
    went = threading.Event()

    def wait() -> None:
        second.take()
        went.set()
        second.give()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not went.is_set()
    first.give()
    assert went.wait(PATIENCE)
    thread.join(PATIENCE)


@pytest.mark.parametrize("drain", [False, True])
def test_an_engine_withdraws_unless_it_finishes_its_requests(
    drain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, withdrawn = Turns(), list[Turn]()
    monkeypatch.setattr(turns, "withdraw", withdrawn.append)
    Engine(fake_model(FakeExecutor()), EngineConfig(slots=1), turns).close(drain=drain)
    assert len(withdrawn) == (0 if drain else 1)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_an_engine_runs_no_step_ahead_while_another_waits(is_wanted: bool) -> None:
    turns, executor = Turns(), FakeExecutor(runs_ahead=True)
    if is_wanted:
        other = turns.turn()
        other.withdraw()  # waits, and never gets the turn
        turns._waiting.append(other)
    in_flight = []
    executor.before_submit = lambda step: in_flight.append(len(executor.submitted))
    with Engine(fake_model(executor), EngineConfig(slots=1, speculation="off"), turns) as engine:
        engine.complete("hello", SamplingParams(seed=1, max_tokens=5, ignore_eos=True))
    assert max(in_flight) == (0 if is_wanted else 1)
