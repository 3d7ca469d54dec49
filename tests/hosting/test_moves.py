"""Requests go on, bit for bit, when their engine stops for another one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from fake_loads import burn, until
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    ModelNotFoundError,
    ModelPoisonedError,
    ModelSourceError,
    ModelUnavailableError,
    NoCopyError,
    RequestsRunError,
)
from heddle.extensions.torch.settings import TorchSettings
from heddle.hosting.status import ModelState
from heddle.outputs import FinishReason
from resumes import MIXED, End, fail_at, params, submit_all

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from heddle.hosting.registry import Registry

SLOTS = EngineConfig(slots=3, batch_tokens=64, speculation="off")


class Running:
    """Mixed requests that run until a step, where they wait until `finish`."""

    def __init__(self, engine: Engine, step: int) -> None:
        self.executor = cast("FakeExecutor", engine.model.executor)
        self.arrived, self.go, self.fails = threading.Event(), threading.Event(), False
        self.executor.before_step = lambda one: self._hold() if one == step else None
        self.ends = submit_all(engine)
        until(self.arrived.is_set)

    def _hold(self) -> None:
        self.arrived.set()
        until(lambda: self.go.is_set() or self.executor.abandoned)
        if self.fails:
            burn()


def in_thread(call: Any) -> list[Any]:
    """Let a thread call it. Returns a list that gets the result or the error."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(call())
        except HeddleError as error:
            done.append(error)

    threading.Thread(target=run).start()
    return done


def results_of(ends: list[End]) -> list[object]:
    return [end.result() for end in ends]


def none_left(registry: Registry) -> bool:
    figures = [engine.snapshot() for engine in registry.engines.values()]
    return not any(one.running or one.queue_depth or one.pages_used for one in figures)


@pytest.fixture
def expected(make) -> list[object]:
    return results_of(submit_all(make().load("one")))


@pytest.mark.parametrize("step", [0, 1, 3, 9])
def test_requests_of_an_unloaded_model_go_on_in_its_copy(make, loads, expected, step) -> None:
    registry = make()
    running = Running(registry.load("one", name="a"), step)
    copy = registry.load("one", name="b")
    done = in_thread(lambda: registry.unload("a", move=True))
    until(lambda: registry.status()[0].state is ModelState.UNLOADING)
    running.go.set()
    assert results_of(running.ends) == expected
    until(lambda: bool(done))
    assert (done, registry.names) == ([None], ("b",))
    assert loads.executors[1].closed
    assert copy.snapshot().finished[FinishReason.LENGTH] == len(MIXED)
    assert none_left(registry)


def test_requests_go_on_in_a_copy_if_their_engine_fails_before_it_leaves_them(
    make, loads, expected, monkeypatch
) -> None:
    registry = make()
    engine = registry.load("one", name="a")
    running = Running(engine, 3)
    registry.load("one", name="b")
    leave, ended = Engine.leave, threading.Event()
    engine.thread.when_ended(ended.set)

    def fail_and_leave(engine: Engine, *arguments: Any) -> None:
        running.fails = True
        running.go.set()
        until(ended.is_set)
        leave(engine, *arguments)

    monkeypatch.setattr(Engine, "leave", fail_and_leave)
    registry.unload("a", move=True)
    assert results_of(running.ends) == expected
    assert none_left(registry)


def test_requests_end_if_their_engine_fails_while_it_is_unloaded(make) -> None:
    registry = make()
    running = Running(registry.load("one"), 3)
    running.fails = True
    done = in_thread(lambda: registry.unload("one"))
    until(lambda: registry.status()[0].state is ModelState.UNLOADING)
    running.go.set()
    for end in running.ends:
        error = end.wait().error
        assert isinstance(error, ModelPoisonedError | EngineFailedError)
        assert "does not go on: the model was unloaded" in error.message
    until(lambda: bool(done))


def test_requests_that_wait_for_a_load_go_on_in_a_copy(make, loads, expected) -> None:
    registry = make()
    engine = registry.load("one", name="a")
    fail_at(loads, 3)
    ends = submit_all(engine)
    until(lambda: engine.closed and registry.status()[0].in_flight == len(MIXED))
    registry.load("one", name="b")
    registry.unload("a", move=True)
    assert results_of(ends) == expected


def test_requests_move_to_a_copy_that_is_just_loaded_again(
    make, loads, expected, monkeypatch
) -> None:
    registry = make()
    running = Running(registry.load("one", name="a"), 3)
    copy, go_on = registry.load("one", name="b"), Engine.go_on
    others: list[Running] = []

    def go_on_late(engine: Engine, *arguments: Any) -> None:
        if not others:
            others.append(Running(copy, 3))
            loads.gate.clear()
            registry.begin_reload("b", SLOTS)
            until(lambda: copy.closed)
            others[0].go.set()
        go_on(engine, *arguments)
        loads.gate.set()

    monkeypatch.setattr(Engine, "go_on", go_on_late)
    running.go.set()
    registry.unload("a", move=True)
    assert results_of(running.ends) == results_of(others[0].ends) == expected


@pytest.mark.parametrize("other", ["none", "another model", "another page format", "a shorter one"])
def test_without_a_copy_nothing_stops(make, loads, expected, other) -> None:
    registry = make()
    running = Running(registry.load("one", name="a"), 2)
    match other:
        case "another model":
            registry.load("two")
        case "another page format":
            loads.page_format = "another"
            registry.load("one", name="b")
        case "a shorter one":
            loads.context = 64
            registry.load("one", name="b")
    with pytest.raises(NoCopyError, match="no other loaded model"):
        registry.unload("a", move=True)
    running.go.set()
    assert results_of(running.ends) == expected
    assert registry.status()[0].state is ModelState.LOADED


def test_a_driven_sequence_does_not_move(make) -> None:
    registry = make()
    engine = registry.load("one", name="a")
    running = Running(engine, 2)
    driven = engine.create_sequence(params(max_tokens=None))
    asked = in_thread(lambda: driven.decode_prompt([5, 6, 7]))
    until(lambda: engine.snapshot().queue_depth + engine.snapshot().running == len(MIXED) + 1)
    registry.load("one", name="b")
    done = in_thread(lambda: registry.unload("a", move=True))
    until(lambda: registry.status()[0].state is ModelState.UNLOADING)
    running.go.set()
    until(lambda: bool(asked and done))
    assert isinstance(asked[0], EngineClosedError)
    assert "the caller of a driven sequence" in asked[0].message


@pytest.mark.parametrize("step", [0, 1, 3, 9])
def test_requests_go_on_after_a_reload(make, loads, expected, step) -> None:
    registry = make()
    running = Running(registry.load("one"), step)
    done = in_thread(lambda: registry.reload("one", SLOTS))
    until(lambda: registry.status()[0].state is ModelState.LOADING)
    running.go.set()
    assert results_of(running.ends) == expected
    until(lambda: bool(done))
    assert registry.engine("one").config.slots == 3
    assert loads.executors[1].closed
    assert none_left(registry)


def test_a_request_gets_no_more_tokens_in_a_larger_engine(make, loads) -> None:
    loads.context = 64
    registry = make()
    engine = registry.load("one")
    expected = engine.complete("hello", params(max_tokens=None)).text
    running = Running(engine, 70)
    end = End()
    engine.submit("hello", params(max_tokens=None), end)
    loads.context = 512
    done = in_thread(lambda: registry.reload("one", SLOTS))
    until(lambda: registry.status()[0].state is ModelState.LOADING)
    running.go.set()
    end.wait()
    assert "".join(delta.text for delta in end.deltas) == expected
    until(lambda: bool(done))


@pytest.mark.parametrize("fault", ["load fails", "another page format", "a shorter context"])
def test_a_reload_that_fails_goes_back(make, loads, expected, fault) -> None:
    registry = make()
    engine = registry.load("one")
    running = Running(engine, 3)
    match fault:
        case "load fails":
            loads.errors = [ModelSourceError("the file is gone")]
        case "another page format":
            loads.page_formats = ["another"]
        case "a shorter context":
            loads.contexts = [20]
    done = in_thread(lambda: registry.reload("one", SLOTS))
    until(lambda: engine.closed)
    running.go.set()
    assert results_of(running.ends) == expected
    until(lambda: bool(done))
    assert isinstance(done[0], ModelSourceError if fault == "load fails" else RequestsRunError)
    assert registry.engine("one").config.slots == EngineConfig().slots
    assert registry.settings_of("one") == EngineConfig()


def test_requests_end_if_no_settings_load_the_model(make, loads) -> None:
    registry = make()
    engine = registry.load("one")
    running = Running(engine, 3)
    loads.error = ModelSourceError("the file is gone")
    done = in_thread(lambda: registry.reload("one", SLOTS))
    until(lambda: engine.closed)
    running.go.set()
    for end in running.ends:
        error = end.wait().error
        assert isinstance(error, EngineClosedError)
        assert "could not be loaded: the file is gone" in error.message
    until(lambda: bool(done))
    assert registry.status()[0].state is ModelState.FAILED
    assert registry.status()[0].in_flight == 0


RANKS = EngineConfig(extensions=(TorchSettings(tensor_parallel=2),))


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        (EngineConfig(), EngineConfig(kv_type="q8_0"), "kv_type"),
        (EngineConfig(), RANKS, "tensor_parallel"),
        (RANKS, EngineConfig(), "tensor_parallel"),
    ],
)
def test_settings_that_change_tokens_wait_for_the_requests(
    make, expected, before, after, name
) -> None:
    registry = make()
    running = Running(registry.load("one", config=before), 3)
    with pytest.raises(RequestsRunError, match=f"{name} would change the tokens of the 8 requests"):
        registry.reload("one", after)
    running.go.set()
    assert results_of(running.ends) == expected
    until(lambda: registry.status()[0].in_flight == 0)
    registry.reload("one", after)
    assert registry.settings_of("one") == after


def test_only_a_healthy_loaded_model_is_loaded_again(make, loads) -> None:
    registry = make(resume_tries=0)
    with pytest.raises(ModelNotFoundError, match="'one' is not loaded"):
        registry.reload("one", SLOTS)
    engine = registry.load("one")
    loads.executors[0].before_step = burn
    engine.submit("hello", params(), Collector())
    until(lambda: engine.closed)
    with pytest.raises(ModelUnavailableError, match="is poisoned"):
        registry.reload("one", SLOTS)


def test_requests_end_when_the_registry_is_closed_during_a_reload(make, loads) -> None:
    registry = make()
    engine = registry.load("one")
    running = Running(engine, 3)
    done = in_thread(lambda: registry.reload("one", SLOTS))
    until(lambda: engine.closed)
    registry.close()
    running.go.set()
    assert all(isinstance(end.wait().error, EngineClosedError) for end in running.ends)
    until(lambda: bool(done))
    assert isinstance(done[0], EngineClosedError)
