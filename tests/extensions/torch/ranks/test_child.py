"""How a rank tells of its steps, while more plans come."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass

import pytest

from heddle.extensions.processes.children.channel import Channel
from heddle.extensions.processes.children.messages import ReadSnapshot
from heddle.extensions.torch.ranks.child import _next_message
from heddle.extensions.torch.ranks.messages import Computed, Order, Report

NEXT = ReadSnapshot(0, 3)


@dataclass
class Running:
    """A step that ends after the rank has looked at it so many times."""

    looks: int
    name: bytes

    @property
    def is_done(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def digest(self) -> bytes:
        assert self.looks < 0, "it would wait, and plans with it"
        return self.name


@pytest.fixture
def ends():
    """The channels of rank 0 and of the other rank."""
    pair = [Channel(end, of) for end, of in zip(socket.socketpair(), (Report, Order), strict=True)]
    yield pair
    for channel in pair:
        channel.close()


def test_a_plan_that_comes_during_a_step_is_taken_before_the_step_ends(ends):
    leader, rank = ends
    started = deque([Running(1000, b"first")])
    leader.send(NEXT)
    assert _next_message(rank, started) == NEXT
    assert len(started) == 1
    assert not leader.has_message(0.0)


def test_steps_that_end_are_told_in_order_until_a_message_comes(ends):
    leader, rank = ends
    last = Running(2, b"second")
    started = deque([Running(3, b"first"), last])

    def told_with_the_next_plan() -> bytes:
        leader.send(NEXT)
        return last.name

    last.digest = told_with_the_next_plan  # type: ignore[method-assign]
    assert _next_message(rank, started) == NEXT
    assert not started
    assert [leader.receive() for _ in range(2)] == [Computed(b"first"), Computed(b"second")]
