"""Three replicas on a real cluster: some die, stop or fail while 32 answers are made."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from requests_of_all_kinds import Answer, ask_all, requests

if TYPE_CHECKING:
    from deployment import Deployment

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.model]


@pytest.fixture(scope="module")
def calm(deployment: Deployment) -> list[Answer]:
    """The answers when nothing happens."""
    answers = asyncio.run(ask_all(deployment.url))
    for (path, body), one in zip(requests(), answers, strict=True):
        assert (one.status, one.error) == (200, ""), (path, body, one)
        assert one.said
    return answers


def check(calm: list[Answer], answers: list[Answer]) -> None:
    """All answers are whole, and what they are when nothing happens."""
    for (path, body), one, other in zip(requests(), answers, calm, strict=True):
        assert (one.status, one.error) == (200, ""), (path, body)
        assert one.said == other.said, (path, body)
    for name, some in (("calm", calm), ("disturbed", answers)):
        print(f"\nlongest wait in a stream, {name}: {max(a.gap for a in some if a.stream):.2f} s")


def test_answers_outlive_a_killed_replica(deployment: Deployment, calm: list[Answer]) -> None:
    killed = deployment.replicas[0]
    answers = asyncio.run(ask_all(deployment.url, lambda: os.kill(killed, signal.SIGKILL)))
    check(calm, answers)
    deployment.until_complete(3, without=killed)


def test_answers_outlive_a_stopped_replica(deployment: Deployment, calm: list[Answer]) -> None:
    stopped = deployment.replicas[0]
    try:
        check(calm, asyncio.run(ask_all(deployment.url, lambda: os.kill(stopped, signal.SIGSTOP))))
    finally:
        with suppress(ProcessLookupError):  # Ray has killed it, as it was silent
            os.kill(stopped, signal.SIGCONT)
    answers = asyncio.run(ask_all(deployment.url))
    # It first takes what was sent to it meanwhile. Until it has dropped that, it may be full.
    for _ in range(5):
        if all(one.status != 429 for one in answers):
            break
        answers = asyncio.run(ask_all(deployment.url))
    check(calm, answers)


def test_answers_outlive_a_failed_model(deployment: Deployment, calm: list[Answer]) -> None:
    failing = deployment.replicas[0]
    check(calm, asyncio.run(ask_all(deployment.url, (deployment.fails / str(failing)).touch)))
    deployment.until_complete(3, without=failing)
