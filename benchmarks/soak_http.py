"""Soaks a server in mixed requests and faults over HTTP, and looks for what is left over.

    python benchmarks/soak_http.py [MODEL] [--requests 100000] [--clients 12] [--seed N]

The server has four slots, a short queue, and two models: MODEL, and the same file under another
name, which loads and unloads as the run goes. Clients send chats, completions, responses, messages
and embeddings, whole and streamed; leave before or within the answer; send malformed requests; and
send more than the queue takes. The run has parts. After each part the server must hold no slot,
page, task or file more than before. The program fails if an answer has a status that its request
cannot have, if a stream has no end, if something is left over, or if the median resident memory of
the last third of the parts is more than `GROWTH` above that of the second third.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

from heddle.extensions.bench.exchange import Exchange
from heddle.extensions.bench.malformed import malformed_requests
from heddle.extensions.bench.remote import connect
from heddle.extensions.bench.servers import running
from heddle.extensions.bench.vitals import read_vitals, settled_vitals
from heddle.loading.find import find_model

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from heddle.extensions.bench.exchange import Server
    from heddle.extensions.bench.vitals import Vitals

    Send = Callable[["Soak", random.Random], Coroutine[Any, Any, None]]

GROWTH = 0.05
PARTS = 30
PATIENCE = 300.0
"""Seconds after which an answer without an end is a fault."""
BUSY = {429, 503}
ANSWERS = {200, *BUSY, 404}
"""404: the model was unloaded meanwhile."""


class Soak:
    """The clients of a server, and what they saw.

    Attributes:
        counts: how often each kind of request got each status.
        faults: what must not happen, a line each.
    """

    def __init__(self, server: Server, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client
        self.malformed = malformed_requests(server)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def send(self, kind: str, chance: random.Random) -> None:
        """Send one request of a kind. What goes wrong becomes a line of `faults`."""
        try:
            async with asyncio.timeout(PATIENCE):
                await KINDS[kind][1](self, chance)
        except TimeoutError:
            self.faults.append(f"{kind}: no end after {PATIENCE:.0f} s")
        except httpx.HTTPError as error:
            self.faults.append(f"{kind}: {error!r}")

    def note(self, kind: str, status: int, allowed: set[int], text: str = "") -> None:
        """Count a status. One that is not allowed is a fault."""
        self.counts[f"{kind} {status}"] += 1
        if status not in allowed:
            self.faults.append(f"{kind}: status {status}: {text[:200]}")


def body_of(path: str, chance: random.Random) -> dict[str, Any]:
    """A body for a route that generates: of either model, greedy or not, streamed or not."""
    words = " ".join(
        chance.choices(
            ["river", "stone", "the", "a", "of", "lamp", "under", "green", "seven"], k=20
        )
    )
    text = words[: chance.randint(1, len(words))]
    most = "max_output_tokens" if path == "/responses" else "max_tokens"
    body: dict[str, Any] = {"model": chance.choice("ab"), most: chance.randint(1, 24)}
    body["stream"] = chance.random() < 0.5
    if path == "/completions":
        return body | {"prompt": text, "seed": chance.randrange(9), "temperature": 0.9}
    if path == "/responses":
        return body | {"input": text}
    return body | {"messages": [{"role": "user", "content": text}]}


async def generate(soak: Soak, chance: random.Random) -> None:
    """One request that generates, read to its end."""
    path = chance.choice(["/completions", "/chat/completions", "/responses", "/messages"])
    body = body_of(path, chance)
    async with soak.client.stream("POST", path, json=body) as answer:
        text = (await answer.aread()).decode()
    soak.note(path, answer.status_code, ANSWERS, text)
    if answer.status_code == 200 and body["stream"]:
        ends = ("[DONE]", "message_stop", "response.completed", "response.incomplete", '"error"')
        if not any(end in text for end in ends):
            soak.faults.append(f"{path}: a stream without an end: {text[-200:]!r}")


async def leave(soak: Soak, chance: random.Random) -> None:
    """A stream whose client leaves after some events, or before the first."""
    body = body_of("/chat/completions", chance) | {"stream": True, "max_tokens": 64}
    events = chance.randrange(6)
    async with soak.client.stream("POST", "/chat/completions", json=body) as answer:
        soak.note("leave", answer.status_code, ANSWERS)
        async for _ in answer.aiter_lines():
            events -= 1
            if events < 0:
                break


async def vanish(soak: Soak, chance: random.Random) -> None:
    """A connection that is reset while the body comes or the request waits."""
    kind = chance.choice(sorted(soak.malformed))
    exchange = Exchange(soak.server, soak.malformed[kind])
    try:
        await exchange.connect()
        exchange.send(chance.random())
    finally:
        exchange.abort()
    soak.counts["vanish"] += 1


async def malform(soak: Soak, chance: random.Random) -> None:
    """A request that must be refused."""
    kind = chance.choice(sorted(soak.malformed))
    exchange = Exchange(soak.server, soak.malformed[kind])
    await exchange.complete(PATIENCE)
    soak.note("malformed", exchange.response().status, {*range(400, 500), 503}, kind)


async def overload(soak: Soak, chance: random.Random) -> None:
    """More requests at once than slots and queue take."""
    await asyncio.gather(*(generate(soak, random.Random(chance.random())) for _ in range(16)))


async def embed(soak: Soak, chance: random.Random) -> None:
    """An embedding."""
    body = {"model": chance.choice("ab"), "input": "river " * chance.randint(1, 40)}
    answer = await soak.client.post("/embeddings", json=body)
    soak.note("embeddings", answer.status_code, ANSWERS, answer.text)


async def change(soak: Soak, chance: random.Random) -> None:
    """Load or unload the second model. Another client may be at it, too."""
    route = chance.choice(["load", "unload"])
    answer = await soak.client.post(f"/models/{route}", json={"model": "b"})
    soak.note(route, answer.status_code, {200, 202, 400, 404, 409, *BUSY}, answer.text)


KINDS: dict[str, tuple[int, Send]] = {
    "generate": (60, generate),
    "leave": (14, leave),
    "vanish": (8, vanish),
    "malformed": (8, malform),
    "embed": (6, embed),
    "overload": (2, overload),
    "change": (2, change),
}
"""The share of each kind, in percent, and what sends it."""


async def part(server: Server, seed: str, requests: int, clients: int) -> Soak:
    """Send requests with some clients, each one at a time."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"{server.url}/v1", timeout=PATIENCE, limits=limits
    ) as client:
        soak = Soak(server, client)
        chance = random.Random(seed)
        weights = [share for share, _ in KINDS.values()]
        kinds = iter(chance.choices(list(KINDS), weights, k=requests))

        async def send_all(own: random.Random) -> None:
            for kind in kinds:
                await soak.send(kind, own)

        await asyncio.gather(*(send_all(random.Random(f"{seed} {n}")) for n in range(clients)))
    return soak


def judge(faults: list[str], sizes: list[float]) -> list[str]:
    """What is wrong with a run: its faults, and memory that grew."""
    third = len(sizes) // 3
    if third and median(sizes[-third:]) > (1 + GROWTH) * median(sizes[third : 2 * third]):
        faults = [*faults, f"resident memory grew by more than {GROWTH:.0%}"]
    return faults


def soak_server(server: Server, given: argparse.Namespace) -> list[str]:
    """Run all parts. Returns what is wrong."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    sizes: list[float] = []
    asyncio.run(part(server, "first", 50, given.clients))  # makes what libraries keep
    before: Vitals = settled_vitals(server, read_vitals(server))
    for number in range(PARTS):
        seed = f"{given.seed} {number}"
        done = asyncio.run(part(server, seed, given.requests // PARTS, given.clients))
        now = settled_vitals(server, before)
        counts += done.counts
        faults += done.faults
        sizes.append(now.resident or 0.0)
        if leaks := now.leaks(before):
            faults.append(f"part {number + 1} left over: {leaks}")
        print(f"part {number + 1}: {sizes[-1] / 1e6:.0f} MB, {len(faults)} faults", flush=True)
    print(json.dumps(dict(sorted(counts.items())), indent=1))
    return judge(faults, sizes)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("model", nargs="?", default="smollm2-135m")
    options.add_argument("--requests", type=int, default=100_000)
    options.add_argument("--clients", type=int, default=12)
    options.add_argument("--seed", default="soak")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in "ab":
            Path(folder, f"{name}.gguf").symlink_to(find_model(given.model).path.resolve())
        settings = ["--slots", "4", "--queue", "8", "--context", "512", "--autoload"]
        paths = [str(Path(folder, f"{name}.gguf")) for name in "ab"]
        command = [sys.executable, "-m", "heddle", "serve", *paths, "--port", "0", *settings]
        with running("heddle", command) as (pid, url):
            wrong = soak_server(connect("heddle", url, pid=pid), given)
    print(*wrong[:50], sep="\n")
    sys.exit(f"{len(wrong)} faults" if wrong else None)


if __name__ == "__main__":
    main()
