"""Deployments on a cluster that runs already: joined, updated, without replicas, ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from deployment import cluster, machine, until
from requests_of_all_kinds import Answer, ask, asked

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deployment import Head

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.model]

CLIENTS = 3
PATH = "/v1/chat/completions"
SMALL = (
    *("--cpus", "0.5", "--kv-cache", "256M", "--context", "8192"),
    *("--silence", "3", "--drain", "1"),
)
ENDLESS = 8000
"""Tokens of an answer that takes longer than a deployment's end."""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A cluster with a deployment of two replicas, made by a command that has ended."""
    with cluster(cpus=4) as made:
        made.deploy("--replicas", "2", "--slots", "8", *SMALL, address="auto")
        yield made


def request(client: int, tokens: int = 60) -> dict[str, Any]:
    common = {"messages": asked(client), "seed": client, "stream": True}
    return common | {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True}


async def asked_until(url: str, number: int, end: asyncio.Event) -> list[Answer]:
    """The answers to a client who asks the same again and again, and once more after `end`."""
    answers, begun = [], asyncio.Semaphore(0)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        is_last = False
        while not is_last:
            is_last = end.is_set()
            answers.append(await ask(client, PATH, request(number), begun))
    return answers


async def all_asked_during(url: str, *command: str, **options: Any) -> list[list[Answer]]:
    """The answers to all clients until a command has ended, which must succeed."""
    end = asyncio.Event()
    clients = [asyncio.create_task(asked_until(url, n, end)) for n in range(CLIENTS)]
    if command:
        process = await asyncio.create_subprocess_exec(*command, **options)
        assert await process.wait() == 0
    end.set()
    return await asyncio.gather(*clients)


def test_a_deployment_stays_when_its_command_has_ended(head: Head) -> None:
    body = {"messages": asked(1), "max_tokens": 4}
    assert httpx.post(head.url + PATH, json=body, timeout=PATIENCE).status_code == 200
    assert len(head.replicas) == 2


def test_streams_outlive_an_update(head: Head) -> None:
    calm = asyncio.run(all_asked_during(head.url))
    before = head.replicas
    update = head.command("--replicas", "2", "--slots", "6", *SMALL)
    asked_all = all_asked_during(head.url, *update, env=head.environment)
    for (expected, *_), answers in zip(calm, asyncio.run(asked_all), strict=True):
        assert expected.said
        for one in answers:
            assert (one.status, one.error) == (200, "")
            assert one.said == expected.said
    until(lambda: len(head.replicas) == 2 and not head.replicas & before)


def test_a_request_starts_a_replica(head: Head) -> None:
    [[expected], *_] = asyncio.run(all_asked_during(head.url))
    head.deploy("--replicas", "0", "--most-replicas", "1", "--idle-seconds", "1", *SMALL)
    until(lambda: not head.replicas)
    [[one], *_] = asyncio.run(all_asked_during(head.url))
    assert (one.status, one.error) == (200, "")
    assert one.said == expected.said


def test_streams_end_with_an_error_when_the_deployment_ends(head: Head) -> None:
    async def ended() -> Answer:
        begun = asyncio.Semaphore(0)
        async with httpx.AsyncClient(base_url=head.url, timeout=PATIENCE) as client:
            stream = asyncio.create_task(ask(client, PATH, request(0, ENDLESS), begun))
            await begun.acquire()
            await asyncio.to_thread(head.deploy, "--end", *SMALL)
            return await stream

    answer = asyncio.run(ended())
    assert answer.error == ""
    assert "the deployment ends" in answer.last
    until(lambda: not head.replicas)


def test_a_machine_without_the_model(head: Head) -> None:
    empty = {"HEDDLE_HOME": str(head.folder / "empty"), "HF_HUB_OFFLINE": "1"}
    environment = head.environment | {"RAY_AUTH_MODE": "token"} | empty
    options = ("--address", head.address, "--num-cpus", "4")
    command = head.command("--replicas", "2", *SMALL, "--cpus", "3")
    with (
        machine(head.folder / "second", *options, environment=environment),
        subprocess.Popen(command, env=head.environment, stderr=subprocess.PIPE, text=True) as made,
    ):
        assert made.stderr is not None
        watchdog = threading.Timer(2 * PATIENCE, made.kill)
        watchdog.start()
        said = []
        for line in made.stderr:
            said.append(line)
            if "ModelSourceError: smollm2-135m is not in" in line:
                made.send_signal(signal.SIGINT)
                break
        ended = made.wait(PATIENCE)
        watchdog.cancel()
        assert ended == 0, said
