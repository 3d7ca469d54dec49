"""Requests that an engine leaves to another one."""

from __future__ import annotations

from typing import Any

from fake_loads import burn, until
from heddle.engine.streaming.blocking import Collector
from heddle.sampling_params import SamplingParams

PARAMS = SamplingParams(seed=1, max_tokens=12, ignore_eos=True)


def test_a_rescue_that_comes_while_a_result_is_applied_counts(start, executor) -> None:
    engine, left = start(), list[Any]()
    scheduler = engine.thread._loop.scheduler
    update = scheduler.update

    def late(*arguments: Any) -> Any:
        engine.thread.leave_requests_to(lambda interrupted: not left.append(interrupted))
        executor.before_step = burn
        return update(*arguments)

    scheduler.update = late
    engine.submit("hello", PARAMS, Collector())
    until(lambda: bool(left))
    left[0].give_up()
