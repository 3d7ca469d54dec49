"""A real cluster: replicas of two ranks, one of which is killed while answers are made."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from configs import configured
from heddle.engine import Engine
from heddle.sampling_params import SamplingParams
from models.tiny import llama
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytest.importorskip("ray")
pytest.importorskip("torch")

pytestmark = pytest.mark.torch_slow

STREAMS, TOKENS = 8, 60
PROMPTS = [[(7 * i * i + 3 * i + n) % 31 + 1 for i in range(20 + n)] for n in range(STREAMS)]
RANK = "ray::RankActor"


@dataclass
class Answer:
    """What a client has of a stream."""

    text: str = ""
    logprobs: tuple[float, ...] = ()
    finish: str = ""


@dataclass
class Deployment:
    """A deployment whose process started all of its cluster."""

    process: subprocess.Popen[str]
    url: str

    @property
    def ranks(self) -> list[int]:
        """Ids of the processes of ranks beside rank 0."""
        return [pid for pid in descendants(self.process.pid) if command_line(pid).startswith(RANK)]


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(one) for one in task.read_text().split()]
        except OSError:  # the thread has ended
            continue
        found += [*children, *(one for child in children for one in descendants(child))]
    return found


def command_line(pid: int) -> str:
    """Of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replace(llama.PLAIN, context=1024).write_folder(tmp_path_factory.mktemp("m") / "tiny")


@pytest.fixture(scope="module")
def deployment(model: Path) -> Iterator[Deployment]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = (
        *("--ranks", "2", "--device", "torch", "--replicas", "2", "--cpus", "0.25"),
        *("--kv-cache", "16M", "--slots", str(STREAMS), "--rank-timeout", "20"),
        *("--port", str(port)),
    )
    command = [sys.executable, "-m", "heddle", "deploy", str(model), *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    started: list[int] = []
    try:
        ready = next((line for line in process.stdout if line.startswith("ready")), None)
        started = descendants(process.pid)
        assert ready is not None
        yield Deployment(process, ready.split()[1])
    finally:
        started += descendants(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE)
        finally:
            left = [pid for pid in started if command_line(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left, "the cluster has ended"


async def ask_all(url: str, during: Callable[[], Awaitable[None]] | None = None) -> list[Answer]:
    """The answers to all prompts at once. When all have begun, `during` runs."""
    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        asked = [asyncio.create_task(ask(client, url, n, begun)) for n in range(STREAMS)]
        if during is not None:
            for _ in asked:
                await asyncio.wait_for(begun.acquire(), PATIENCE)
            await during()
        return await asyncio.gather(*asked)


async def ask(client: httpx.AsyncClient, url: str, n: int, begun: asyncio.Semaphore) -> Answer:
    answer = Answer()
    body = {"prompt": PROMPTS[n], "max_tokens": TOKENS, "seed": n, "ignore_eos": True}
    stream = {"stream": True, "logprobs": 0, "temperature": 0.8}
    async with client.stream("POST", f"{url}/completions", json=body | stream) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event: Any = json.loads(line.removeprefix("data: "))
            if not answer.logprobs:
                begun.release()
            for choice in event["choices"]:
                answer.text += choice["text"]
                answer.logprobs += tuple((choice["logprobs"] or {}).get("token_logprobs", ()))
                answer.finish = choice["finish_reason"] or answer.finish
    return answer


def test_ranks_on_a_cluster_give_the_bits_of_ranks_here(
    deployment: Deployment, model: Path
) -> None:
    found = asyncio.run(ask_all(deployment.url))
    config = configured(device="torch", tensor_parallel=2, threads=1, kv_cache=16 << 20)
    with Engine.load(model, config) as engine:
        for n, answer in enumerate(found):
            params = SamplingParams(
                temperature=0.8, seed=n, max_tokens=TOKENS, ignore_eos=True, logprobs=0
            )
            deltas = list(engine.stream(PROMPTS[n], params))
            assert answer.text == "".join(delta.text for delta in deltas)
            logprobs = [one.logprob for delta in deltas for one in delta.tokens]
            assert answer.logprobs == tuple(logprobs)


def test_streams_outlive_a_killed_rank(deployment: Deployment) -> None:
    calm = asyncio.run(ask_all(deployment.url))
    before = deployment.ranks
    assert len(before) == 2

    async def kill() -> None:
        os.kill(before[0], signal.SIGKILL)

    assert asyncio.run(ask_all(deployment.url, kill)) == calm
    assert {one.finish for one in calm} == {"length"}

    async def until_the_group_is_back() -> None:
        async with asyncio.timeout(PATIENCE):
            while len({*deployment.ranks} - {before[0]}) < 2:
                await asyncio.sleep(0.1)  # lets the cluster work

    asyncio.run(until_the_group_is_back())
