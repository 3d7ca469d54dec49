"""Requests go on, bit for bit, when their model has failed and is loaded again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fake_loads import Loads, until
from heddle.embedding import EmbeddingParams
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    DeadlineError,
    EngineClosedError,
    EngineFailedError,
    ModelPoisonedError,
)
from heddle.hosting.status import ModelState
from heddle.outputs import FinishReason
from patience import PATIENCE
from resumes import End, Timer, fail_at, load_again, params, submit_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.hosting.registry import Registry

    Make = Callable[..., Registry]


@pytest.mark.parametrize("step", range(12))
def test_streams_go_on_as_if_no_step_had_failed(make: Make, loads: Loads, step: int) -> None:
    expected = [end.result() for end in submit_all(make().load("one"))]
    registry = make()
    engine = registry.load("one")
    loads.executors[-1].gate.clear()
    fail_at(loads, step)
    ends = submit_all(engine)
    embedding = Collector()
    engine.submit("vector", EmbeddingParams(), embedding)
    loads.executors[-1].gate.set()
    load_again(loads)
    assert [end.result() for end in ends] == expected
    assert embedding.wait_embedding().usage.prompt_tokens == 6
    snapshot = registry.engine("one").snapshot()
    assert (snapshot.running, snapshot.queue_depth) == (0, 0)


def test_a_request_ends_when_too_many_steps_with_it_have_failed(make: Make, loads: Loads) -> None:
    registry = make(resume_tries=2)
    end = End()
    engine = registry.load("one")
    fail_at(loads, 0)
    loads.failing = True
    engine.submit("hello", params(), end)
    for _ in range(3):
        load_again(loads)
    assert isinstance(end.wait().error, EngineFailedError)


@pytest.mark.parametrize("end", ["load fails", "unload", "close", "other files"])
def test_requests_that_cannot_go_on_end(make: Make, loads: Loads, end: str) -> None:
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 1)
    loads.executors[-1].gate.clear()
    carried = Collector()
    engine.submit("hello", params(), carried)
    loads.executors[-1].gate.set()
    until(lambda: len(Timer.made) == 1)
    assert registry.status()[0].in_flight == 1
    match end:
        case "load fails":
            loads.error = EngineClosedError("no such file")
            Timer.made[-1].fire()
        case "unload":
            registry.unload("one")
        case "close":
            registry.close()
        case "other files":
            loads.page_format = "another"
            load_again(loads)
    with pytest.raises(EngineFailedError, match="the step burns"):
        carried.wait()
    assert all(not one.in_flight for one in registry.status())


def test_a_request_may_be_cancelled_while_it_waits_for_the_load(make: Make, loads: Loads) -> None:
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 1)
    collector = Collector()
    end = End()
    ticket = engine.submit("hello", params(), end)
    engine.submit("world", params(), collector)
    until(lambda: len(Timer.made) == 1)
    ticket.cancel()
    load_again(loads)
    assert end.wait().finish is FinishReason.CANCELLED
    assert collector.wait().usage.completion_tokens == 12


def test_an_event_loop_gets_the_rest_of_its_streams(make: Make, loads: Loads) -> None:
    expected = make().load("one").complete("hello", params()).text
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 4)

    async def read() -> str:
        stream = engine.generate("hello", params())
        asyncio.get_running_loop().run_in_executor(None, again)
        async with asyncio.timeout(PATIENCE):
            return "".join([delta.text async for delta in stream])

    def again() -> None:
        until(lambda: bool(Timer.made))
        Timer.made[-1].fire()

    assert asyncio.run(read()) == expected


def test_a_deadline_ends_a_request_that_waits_for_the_load(make, loads: Loads) -> None:
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 1)
    with pytest.raises(DeadlineError):
        engine.complete("hello", params(deadline=0.5))
    load_again(loads)
    until(lambda: registry.status()[0].in_flight == 0)


def test_usage_counts_the_guesses_before_the_failure(make, loads: Loads) -> None:
    asked = params(speculation={"drafter": "auto", "length": 2}, max_tokens=40)
    prompt = [5, 6, 7] * 20
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 30)
    collector = Collector()
    engine.submit(prompt, asked, collector)
    until(lambda: bool(Timer.made))
    before = engine.snapshot().drafted_tokens
    load_again(loads)
    assert collector.wait().usage.drafted_tokens >= before > 0


def test_without_tries_requests_end_at_once(make: Make, loads: Loads) -> None:
    registry = make(resume_tries=0)
    engine = registry.load("one")
    fail_at(loads, 1)
    with pytest.raises(EngineFailedError, match="the step burns"):
        engine.complete("hello", params())
    with pytest.raises(ModelPoisonedError):
        engine.complete("hello", params())
    until(lambda: registry.status()[0].state is ModelState.POISONED)


def fail_device(engine: Engine) -> None:
    """Let the device of an engine fail while it has no requests, and wait until it has ended."""
    engine.thread._loop._note_device_problem("it burns")
    until(lambda: not engine.thread._thread.is_alive())


@pytest.mark.parametrize("when", ["before its publication", "after it"])
def test_requests_outlive_an_engine_that_fails_before_it_has_them(
    make: Make, loads: Loads, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    expected = [end.result() for end in submit_all(make().load("one"))]
    registry = make()
    engine = registry.load("one")
    fail_at(loads, 3)
    ends = submit_all(engine)
    failing: Iterator[Callable[[Engine], object]] = iter([fail_device])
    if when == "after it":
        go_on = Engine.go_on

        def go_on_late(engine: Engine, *arguments: Any) -> None:
            next(failing, id)(engine)
            go_on(engine, *arguments)

        monkeypatch.setattr(Engine, "go_on", go_on_late)
    else:
        until(lambda: bool(Timer.made))
        failing = iter([id, fail_device])  # an observer sees the engine that has failed first
        registry.on_loaded(lambda _, engine: next(failing, id)(engine))
    load_again(loads)
    load_again(loads)
    assert [end.result() for end in ends] == expected


def test_new_requests_come_after_those_that_wait_for_a_load(
    make: Make, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make()
    engine, go_on, seen = registry.load("one"), Engine.go_on, []

    def look(engine: Engine, *arguments: Any) -> None:
        seen.append(registry.status()[0].state)
        go_on(engine, *arguments)

    monkeypatch.setattr(Engine, "go_on", look)
    fail_at(loads, 3)
    ends = submit_all(engine)
    load_again(loads)
    assert all(end.result() for end in ends)
    assert seen == [ModelState.LOADING]


def test_requests_of_a_failing_engine_wait_for_a_load_that_a_caller_begins(
    make: Make, loads: Loads
) -> None:
    expected = [end.result() for end in submit_all(make().load("one"))]
    registry = make()
    engine = registry.load("one")
    loop = engine.thread._loop
    rescue = loop.rescue

    def rescue_late(left: Any) -> bool:
        registry.begin_load("one")
        return rescue(left)

    loop.rescue = rescue_late
    fail_at(loads, 3)
    assert [end.result() for end in submit_all(engine)] == expected


def test_a_failed_step_counts_once_however_many_engines_end_before_it_goes_on(
    make: Make, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make(resume_tries=1)
    engine = registry.load("one")
    go_on, failing = Engine.go_on, iter([fail_device, fail_device])

    def go_on_late(engine: Engine, *arguments: Any) -> None:
        next(failing, id)(engine)
        go_on(engine, *arguments)

    monkeypatch.setattr(Engine, "go_on", go_on_late)
    fail_at(loads, 0)
    end = End()
    engine.submit("hello", params(), end)
    for _ in range(3):
        load_again(loads)
    assert end.wait().error is None
