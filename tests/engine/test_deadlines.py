"""A request ends at its deadline, wherever it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fake_loads import until
from heddle.engine.llm import LLM
from heddle.errors import DeadlineError, InvalidRequestError
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_executor import FakeExecutor
    from heddle.engine import Engine

SOON = SamplingParams(max_tokens=5, ignore_eos=True, seed=1, deadline=0.02)
LATE = SamplingParams(max_tokens=5, ignore_eos=True, seed=1, deadline=3600)


async def read(engine: Engine, params: SamplingParams) -> str:
    return "".join([delta.text async for delta in engine.generate("hello", params)])


async def read_all(engine: Engine, params: SamplingParams) -> str:
    """Read when all has arrived, as for an answer in JSON."""
    streams = engine.generate_many([("hello", params)])
    await streams.complete()
    return "".join([delta.text async for _, delta in streams])


WAYS: dict[str, Callable[[Engine, SamplingParams], str]] = {
    "complete": lambda engine, params: engine.complete("hello", params).text,
    "stream": lambda engine, params: "".join(one.text for one in engine.stream("hello", params)),
    "generate": lambda engine, params: asyncio.run(read(engine, params)),
    "LLM": lambda engine, params: LLM(engine).generate(["hello"], params)[0].text,
    "generate_many": lambda engine, params: asyncio.run(read_all(engine, params)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_ends_at_its_deadline(start, executor: FakeExecutor, way: str) -> None:
    engine = start()
    executor.gate.clear()
    with pytest.raises(DeadlineError, match=r"deadline of 0\.02 s"):
        WAYS[way](engine, SOON)
    executor.gate.set()
    until(lambda: engine.snapshot().running == 0)
    assert WAYS[way](engine, LATE)


def test_the_timer_of_a_request_that_has_ended_is_cancelled(start) -> None:
    engine = start()

    async def timers() -> list[bool]:
        ended = engine.generate_many([("hello", LATE)])
        await ended.complete()
        closed = engine.generate_many([("hello", LATE)])
        closed.close()
        cancelled: list[Any] = [streams._timer for streams in (ended, closed)]
        return [timer.cancelled() for timer in cancelled]

    assert asyncio.run(timers()) == [True, True]


def test_a_dropped_iterator_does_not_wait_for_its_deadline(start, executor: FakeExecutor) -> None:
    engine = start()
    executor.gate.clear()

    async def drop() -> None:
        engine.generate("hello", LATE)  # the timer refers to it weakly

    asyncio.run(drop())
    executor.gate.set()
    until(lambda: engine.snapshot().running == 0 and not engine.snapshot().queue_depth)


@pytest.mark.parametrize("wrong", [-1, 86_401, float("nan"), "soon"])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="deadline"):
        SamplingParams(deadline=wrong)
