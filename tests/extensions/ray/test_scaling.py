"""How many replicas there should be."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.extensions.ray.scaling import Aim, Load, QueueTimePolicy, reported, wanted

AIM = Aim(fewest=1, most=10, queue_seconds=2.0, idle_seconds=30.0)
TO_ZERO = Aim(fewest=0, most=10, queue_seconds=2.0, idle_seconds=30.0)


def load(running: float = 0, waiting: float = 0, tokens: float = 0, **more: float) -> Load:
    """A replica with 8 slots that computes 100 tokens per second, 50 for each request."""
    usual = {"request_tokens": 50.0, "tokens_per_second": 100.0, "idle_seconds": 0.0}
    return Load(8, running, waiting, tokens, **{**usual, **more})


BUSY = load(8)


@pytest.mark.parametrize(
    ("loads", "queued", "target", "number"),
    [
        pytest.param([load(8, 8, 200)], 0, 1, 1, id="the queue takes no longer than it may"),
        pytest.param([load(8, 8, 201)], 0, 1, 2, id="it takes longer"),
        pytest.param([load(8, 40, 900)], 0, 1, 5, id="as many as let it be short enough"),
        pytest.param([load(8, 4, 900)], 0, 1, 2, id="no more than give each a slot"),
        pytest.param([load(8, 90, 9000)], 0, 1, 10, id="no more than the most"),
        pytest.param([BUSY], 5, 1, 2, id="requests at ingresses count"),
        pytest.param([load(8, 8, 300)], 0, 2, 2, id="a replica that starts will take its share"),
        pytest.param([load(8, 8, 500), BUSY], 0, 2, 3, id="the queue of one is that of all"),
        pytest.param([load(1, 9, 900, tokens_per_second=0.0)], 0, 1, 1, id="unknown rate"),
        pytest.param([load(8, request_tokens=0.0)], 50, 1, 1, id="unknown requests"),
        pytest.param([load(4), load(2)], 0, 2, 1, id="one fewer is enough"),
        pytest.param([load(4), load(3)], 0, 2, 2, id="one fewer would be nearly full"),
        pytest.param([load(2)] * 6, 0, 6, 5, id="one at a time"),
        pytest.param([load(3, 1, 101), load(2)], 0, 2, 2, id="not while requests wait"),
        pytest.param([load(0, idle_seconds=99)], 0, 1, 1, id="not below the fewest"),
        pytest.param([], 3, 1, 1, id="the first replica is starting"),
    ],
)
def test_the_number_follows_the_queue(
    loads: list[Load], queued: float, target: int, number: int
) -> None:
    assert wanted(loads, queued, target, AIM) == number


@pytest.mark.parametrize(
    ("loads", "queued", "target", "number"),
    [
        pytest.param([load(0, idle_seconds=30)], 0, 1, 0, id="idle for long"),
        pytest.param([load(0, idle_seconds=29)], 0, 1, 1, id="idle"),
        pytest.param([load(1)], 0, 1, 1, id="busy"),
        pytest.param([load(0, idle_seconds=30)], 1, 1, 1, id="a request waits"),
        pytest.param([load(0, idle_seconds=99)] * 2, 0, 2, 1, id="one at a time"),
        pytest.param([], 0, 0, 0, id="none"),
    ],
)
def test_idle_replicas_go(loads: list[Load], queued: float, target: int, number: int) -> None:
    assert wanted(loads, queued, target, TO_ZERO) == number


def test_the_number_settles() -> None:
    """With constant work, the number neither swings nor grows beyond what the work needs."""
    for requests in range(1, 80):
        number = 1
        numbers = []
        for _ in range(30):
            share = requests / number
            running = min(8.0, share)
            waiting = share - running
            number = wanted([load(running, waiting, 50 * waiting)] * number, 0, number, AIM)
            numbers.append(number)
        assert len({*numbers[-10:]}) == 1
        assert number <= max(1, -(-requests // 8))


def test_ray_s_context_is_read() -> None:
    now = asdict(load(8, 40, 900))
    metrics = {name: {"one": series(0.0, value)} for name, value in now.items()}
    metrics["slots"]["starting"] = series(8.0)  # it has not told the rest
    assert reported(metrics) == [load(8, 40, 900)]
    context = SimpleNamespace(
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
        total_queued_requests=0.0,
        target_num_replicas=1,
        raw_metrics=metrics,
    )
    assert QueueTimePolicy(2.0, 30.0)(context) == (4, {})


def series(*values: float) -> list[Any]:
    return [SimpleNamespace(value=value) for value in values]
