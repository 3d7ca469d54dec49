"""What the soak over HTTP says of a run."""

from __future__ import annotations

import asyncio
import random

import pytest

import soak_http
from soak_http import KINDS, Soak, body_of, judge


@pytest.fixture
def soak() -> Soak:
    """What clients saw, without a server."""
    made = Soak.__new__(Soak)
    made.counts, made.faults = soak_http.Counter(), []
    return made


@pytest.mark.parametrize(
    ("sizes", "grew"),
    [
        ([100.0] * 9, False),
        ([50.0] * 3 + [100.0] * 6, False),  # a first load grows
        ([100.0] * 6 + [106.0] * 3, True),
        ([100.0] * 6 + [104.0, 104.0, 900.0], False),
        ([100.0, 900.0], False),
    ],
)
def test_memory_that_grows_is_a_fault(sizes: list[float], grew: bool) -> None:
    assert bool(judge([], sizes)) == grew
    assert judge(["another"], sizes)[0] == "another"


def test_shares_of_kinds_are_percents() -> None:
    assert sum(share for share, _ in KINDS.values()) == 100


def test_a_status_that_a_request_cannot_have_is_a_fault(soak: Soak) -> None:
    soak.note("chat", 429, soak_http.ANSWERS)
    assert soak.faults == []
    soak.note("chat", 500, soak_http.ANSWERS, "why")
    assert soak.faults == ["chat: status 500: why"]
    assert soak.counts == {"chat 429": 1, "chat 500": 1}


def test_an_answer_without_an_end_is_a_fault(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(soak_http, "PATIENCE", 0.01)
    monkeypatch.setitem(soak_http.KINDS, "wait", (0, wait))
    asyncio.run(soak.send("wait", random.Random()))
    assert soak.faults == ["wait: no end after 0 s"]


@pytest.mark.parametrize(
    ("path", "field"),
    [("/completions", "prompt"), ("/responses", "input"), ("/messages", "messages")],
)
def test_a_body_has_what_its_route_reads(path: str, field: str) -> None:
    body = body_of(path, random.Random(1))
    assert field in body
    assert body == body_of(path, random.Random(1))
