"""What a replica reports to Ray's autoscaler."""

from __future__ import annotations

import pytest

from heddle.extensions.ray.flow import Flow
from heddle.extensions.ray.loads import Requests, load_of
from heddle.sampling_params import SamplingParams
from talking_model import talking_engine


def test_a_replica_is_idle_after_its_last_request() -> None:
    now = [10.0]
    requests = Requests(lambda: now[0])
    now[0] = 12.0
    assert requests.idle_seconds() == 2.0
    with requests.one():
        with requests.one():
            now[0] = 20.0
        now[0] = 21.0
        assert requests.idle_seconds() == 0.0
    now[0] = 22.5
    assert requests.idle_seconds() == 1.5


def test_the_load_is_that_of_all_engines() -> None:
    with talking_engine("{{ messages[0].content }}") as (engine, executor):
        executor.answers = ("four",)
        idle = load_of([engine.snapshot()], 3.0)
        assert (idle.running, idle.waiting, idle.waiting_tokens, idle.idle_seconds) == (0, 0, 0, 3)
        assert (idle.request_tokens, idle.tokens_per_second) == (0.0, 0.0)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        done = [engine.stream([1, 2, 3, 4, 5], params) for _ in range(4)]
        assert [len([*one]) > 0 for one in done] == [True] * 4
        now = load_of([engine.snapshot()] * 2, 0.0)
        assert now.request_tokens == 8.0
        assert now.tokens_per_second > 0.0
        assert now.slots == 2 * len(engine.snapshot().slots)


def test_a_place_is_expected_after_as_long_as_replicas_take_for_the_queue() -> None:
    flow = Flow()
    assert flow.seconds(100, 0.0) == 5.0
    for second in range(200):
        flow.note(second / 4)
    assert flow.seconds(100, 50.0) == pytest.approx(25.0)
    assert flow.seconds(1, 50.0) == 1.0
    assert flow.seconds(100, 82.0) == pytest.approx(75.0)  # none was taken for 32 s
    assert flow.seconds(10**6, 50.0) == 600.0
