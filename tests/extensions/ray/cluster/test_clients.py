"""Clients of a deployment on a real cluster get what `heddle serve` answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from deployment import QUEUE, REPLICAS, SLOTS, until
from requests_of_all_kinds import HEADERS, asked

from heddle import Engine, EngineConfig
from heddle.config import DEFAULT_MODEL, ServerConfig
from live_server import KEYS, live_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deployment import Deployment

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.model]

LONG = 900
"""Tokens, and so steps, of an answer that nobody waits for."""
GOOD: dict[str, Any] = {"messages": asked(1), "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """URL of a server with the same settings."""
    config = EngineConfig(slots=8, context=1024, kv_cache=1 << 28, threads=1)
    with (
        Engine.load(DEFAULT_MODEL, config) as engine,
        live_server(engine, ServerConfig(port=0, max_body=1 << 16, api_key=KEYS)) as server,
    ):
        yield server.url


REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/chat/completions", {"json": GOOD}),
    ("POST", "/v1/chat/completions", {"content": b"{not json"}),
    ("POST", "/v1/chat/completions", {"content": b"a" * (1 << 16) + b"b"}),
    ("POST", "/v1/chat/completions", {"json": GOOD | {"model": "other"}}),
    ("POST", "/v1/messages", {"json": GOOD | {"model": "other"}}),
    ("POST", "/v1/chat/completions", {"json": GOOD | {"temperature": -1}}),
    ("POST", "/v1/chat/completions", {"json": GOOD | {"stream": True, "top_k": "many"}}),
    (
        "POST",
        "/v1/chat/completions",
        {"content": b"a=b", "headers": HEADERS | {"content-type": "text/xml"}},
    ),
    ("POST", "/v1/chat/completions", {"json": GOOD, "headers": {"authorization": "Bearer other"}}),
    ("POST", "/v1/chat/completions", {"json": GOOD, "headers": {}}),
    ("GET", "/v1/chat/completions", {}),
    ("GET", "/no/such/route", {}),
    ("POST", "/tokenize", {"json": {"content": "the sea"}}),
    ("GET", "/health", {}),
    ("OPTIONS", "/v1/models", {}),
]


@pytest.mark.parametrize(("method", "path", "request_"), REQUESTS)
def test_answers_are_those_of_one_server(
    deployment: Deployment, alone: str, method: str, path: str, request_: dict[str, Any]
) -> None:
    there, here = (
        httpx.request(method, url + path, timeout=PATIENCE, **{"headers": HEADERS} | request_)
        for url in (deployment.url, alone)
    )
    assert there.status_code == here.status_code
    assert without_times(there) == without_times(here)
    assert len(there.headers.get_list("x-request-id")) == 1
    left_out = {"date", "x-request-id", "request-id", "content-length", "server", "connection"}
    assert set(there.headers) - left_out == set(here.headers) - left_out


def without_times(response: httpx.Response) -> Any:
    """Its body without times and ids."""
    try:
        body = response.json()
    except json.JSONDecodeError:
        return response.text
    changing = ("id", "created", "timings", "uptime_seconds", "system_fingerprint", "usage")
    return {name: value for name, value in body.items() if name not in changing}


@pytest.mark.parametrize("more", [{}, {"x-request-disconnect-disabled": "?1"}])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(
    deployment: Deployment, stream: bool, more: dict[str, str]
) -> None:
    """Also with a header that tells Ray's proxy to look away."""
    body = GOOD | {"max_tokens": LONG, "ignore_eos": True, "stream": stream}
    url, seen = f"{deployment.url}/v1/chat/completions", [deployment.steps]

    async def leave() -> None:
        async with httpx.AsyncClient(headers=HEADERS | more, timeout=PATIENCE) as client:
            asked = asyncio.create_task(client.post(url, json=body))
            while deployment.steps == seen[0]:
                await asyncio.sleep(0.01)  # lets the deployment work
            asked.cancel()
            await asyncio.wait({asked})

    asyncio.run(leave())

    def is_still() -> bool:
        seen.append(deployment.steps)
        return seen[-1] == seen[-2] > seen[0]

    until(is_still, every=1.0)
    assert seen[-1] - seen[0] < LONG


def test_a_full_deployment_answers_questions(deployment: Deployment) -> None:
    async def run() -> int:
        options: Any = {"limits": httpx.Limits(max_connections=None), "headers": HEADERS}
        async with httpx.AsyncClient(
            base_url=deployment.url, timeout=PATIENCE, **options
        ) as client:
            body = GOOD | {"max_tokens": LONG, "ignore_eos": True}
            asked = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body))
                for _ in range(REPLICAS * (SLOTS + QUEUE) + 1)
            ]
            while await waiting(client) < REPLICAS * QUEUE:
                await asyncio.sleep(0.1)  # lets the deployment work
            health = await client.get("/health")
            for one in asked:
                one.cancel()
            await asyncio.wait(asked)
            return health.status_code

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == 200


async def waiting(client: httpx.AsyncClient) -> float:
    """Requests in the queues of all replicas."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith("heddle_queue_depth{"))


def test_admin_routes_are_refused(deployment: Deployment) -> None:
    url, body = f"{deployment.url}/models/load", {"model": "x"}
    answer = httpx.post(url, json=body, headers=HEADERS, timeout=PATIENCE)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"
    assert "deploy it again" in answer.json()["error"]["message"]
