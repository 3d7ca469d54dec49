"""Requests go on after what their sinks have, if the failed engine has lost later tokens."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor
from heddle.engine.streaming.blocking import Collector
from heddle.errors import EngineFailedError
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine import Engine
    from heddle.engine.loop import EngineLoop
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.outputs import Output

    Owner = Callable[[EngineLoop], object]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"seed": 1, "max_tokens": 12, "ignore_eos": True} | fields))


REQUESTS = [
    ("hello", params()),
    ("mirostat", params(seed=2, mirostat=2)),
    ("scored and longer than a chunk of a step", params(seed=3, prompt_logprobs=1)),
    ("only scored", params(seed=4, prompt_logprobs=0, max_tokens=0)),
    ("short", params(seed=5, max_tokens=3)),
    ("another one that waits", params(seed=6)),
]

POINTS: dict[str, tuple[Owner, str]] = {
    "apply a result": (lambda loop: loop.scheduler, "update"),
    "apply an outcome": (lambda loop: loop.scheduler, "_apply"),
    "end a sequence": (lambda loop: loop.scheduler, "_end"),
    "release a slot": (lambda loop: loop.scheduler.admission, "release"),
    "deliver": (lambda loop: loop.delivery, "deliver"),
    "deliver tokens": (lambda loop: loop.delivery, "deliver_tokens"),
}


@pytest.fixture
def left() -> SimpleQueue[Interrupted]:
    """The requests that failed engines have left."""
    return SimpleQueue()


@pytest.fixture
def begin(start: Callable[..., Engine], left: SimpleQueue[Interrupted]) -> Callable[[], Engine]:
    """Starts engines that leave their requests when they fail."""

    def keep(interrupted: Interrupted) -> bool:
        left.put(interrupted)
        return True

    def begun() -> Engine:
        engine = start(executor=FakeExecutor(), slots=4, batch_tokens=16)
        engine.thread.leave_requests_to(keep)
        return engine

    return begun


def fail(engine: Engine, owner: Owner, method: str, calls: int, *, after: bool = False) -> None:
    """Let a method fail in the engine thread from this call on, before or after its work."""
    thread, part = engine.thread._thread, owner(engine.thread._loop)
    work, left = getattr(part, method), calls

    def failing(*args: Any) -> Any:
        nonlocal left
        if threading.current_thread() is not thread:
            return work(*args)
        left -= 1
        result = work(*args) if left > 0 or after else None
        if left <= 0:
            raise RuntimeError(f"{method} burns")
        return result

    setattr(part, method, failing)


def submit_all(engine: Engine) -> list[Collector]:
    collectors = [Collector() for _ in REQUESTS]
    engine.submit_many((*one, to) for one, to in zip(REQUESTS, collectors, strict=True))
    return collectors


def result(collector: Collector) -> Output:
    """The output, or its error. Fails if it does not come."""
    assert collector._done.wait(PATIENCE), "the request did not end"
    return collector.wait()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("point", POINTS)
def test_no_token_is_lost_or_sent_twice(
    begin: Callable[[], Engine],
    left: SimpleQueue[Interrupted],
    point: str,
    calls: int,
    after: bool,
) -> None:
    """The failure lasts, so the engine cannot deliver its last tokens either."""
    expected = [result(one) for one in submit_all(begin())]
    engine = begin()
    fail(engine, *POINTS[point], calls, after=after)
    collectors = submit_all(engine)
    begin().go_on(left.get(timeout=PATIENCE), 1)
    assert [result(one) for one in collectors] == expected


def test_a_result_that_cannot_be_applied_counts_as_a_failed_step(
    begin: Callable[[], Engine], left: SimpleQueue[Interrupted]
) -> None:
    engine, collector = begin(), Collector()
    fail(engine, *POINTS["end a sequence"], 1, after=True)
    engine.submit("hello", params(), collector)
    for _ in range(2):
        engine = begin()
        fail(engine, *POINTS["end a sequence"], 1, after=True)
        engine.go_on(left.get(timeout=PATIENCE), 2)
    begin().go_on(left.get(timeout=PATIENCE), 2)
    with pytest.raises(EngineFailedError, match="_end burns"):
        result(collector)


@pytest.mark.parametrize("text", ["a stop string", "a broken character"])
def test_a_request_that_has_ended_ends_once_when_it_cannot_leave_the_scheduler(
    begin: Callable[[], Engine],
    left: SimpleQueue[Interrupted],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    alone = [begin().complete(prompt, params(max_tokens=40)) for prompt in ("hello", "world")]
    engine, ended, beside = begin(), Collector(), Collector()
    fail(engine, lambda loop: loop.delivery, "_leave_scheduler", 1)
    stop = (alone[0].text[20:24],) if text == "a stop string" else ()
    engine.model.executor.gate.clear()  # type: ignore[attr-defined]
    ticket = engine.submit("hello", params(max_tokens=40, stop=stop), ended)
    engine.submit("world", params(max_tokens=40), beside)
    if not stop:
        monkeypatch.setattr(engine.thread._loop.delivery.requests[ticket.id].detokenizer, "push", 0)
    engine.model.executor.gate.set()  # type: ignore[attr-defined]
    begin().go_on(left.get(timeout=PATIENCE), 2)
    assert result(beside) == alone[1]
    if stop:
        assert result(ended).finish is FinishReason.STOP
    else:
        with pytest.raises(EngineFailedError, match="could not be delivered"):
            result(ended)
