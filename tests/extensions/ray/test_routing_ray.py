"""The router in a real local Ray Serve: two replicas without a model."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("ray.serve")

from on_ray import Exchange, exchange, serving

from heddle.errors import InvalidRequestError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

WAIT = 60.0  # seconds: a bound, not a measure


@pytest.fixture(scope="module")
def handle():
    with serving() as handle:
        yield handle


def answer(handle, request: Exchange) -> str:
    return handle.answer.remote(request).result(timeout_s=WAIT)


def until_published(handle, replica: str, polls: int = 3) -> None:
    """Wait until Ray has asked the replica for so many more publications."""
    ids = sorted({replica, *others(handle, replica)})
    avoid = tuple(one for one in ids if one != replica)
    asked = Exchange(avoid=avoid)
    goal = handle.polls.remote(asked).result(timeout_s=WAIT) + polls
    ends = time.monotonic() + WAIT
    while handle.polls.remote(asked).result(timeout_s=WAIT) < goal:
        assert time.monotonic() < ends, "Ray does not poll the replica"


def others(handle, replica: str) -> set[str]:
    return {answer(handle, Exchange(avoid=(replica,)))}


def test_a_conversation_stays_at_its_replica_while_others_use_both(handle):
    texts = [f"{talk} " * 300 for talk in range(12)]
    first = [answer(handle, exchange(text)) for text in texts]
    assert len(set(first)) == 2
    for replica in set(first):
        until_published(handle, replica)
    again = [answer(handle, exchange(text + " and more" * 20)) for text in texts]
    assert again == first


def test_a_replica_to_avoid_gets_no_request(handle):
    text = "avoided " * 200
    lost = answer(handle, exchange(text))
    assert {answer(handle, exchange(text, avoid=(lost,))) for _ in range(5)} == others(handle, lost)


def test_a_name_that_no_replica_has_may_be_an_alias(handle):
    assert answer(handle, exchange("x", model="missing"))


def test_replicas_that_have_failed_a_request_are_better_than_none(handle):
    one = answer(handle, Exchange())
    both = {one, *others(handle, one)}
    assert answer(handle, Exchange(avoid=tuple(both))) in both


def test_a_key_that_is_none_fails_at_once_and_no_key_is_served(handle):
    with pytest.raises(InvalidRequestError, match="key has 3 bytes"):
        answer(handle, Exchange(key=b"abc"))
    assert answer(handle, Exchange())
