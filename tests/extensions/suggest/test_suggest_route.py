"""`GET /v1/models/suggest`: what `heddle suggest` says, measured once a minute."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from heddle.errors import OutOfMemoryError
from heddle.extensions.suggest import api
from heddle.extensions.suggest.api import KEPT_SECONDS, KeptMachine, suggestions_for
from heddle.extensions.suggest.machine import Machine
from heddle.extensions.suggest.suggestions import EMBEDDINGS, RERANKERS, SUGGESTIONS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

GB = 10**9
MACHINE = Machine(6 * GB, 17.0 * GB, 0.25)


class Measurements:
    """Counts measurements, in place of them."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def __call__(self) -> Machine:
        self.threads.append(threading.current_thread())
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return MACHINE


def test_the_route_says_what_the_command_says(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.KeptMachine.__init__, "__defaults__", (lambda: MACHINE, lambda: 1.0))
    shown = serve().get("/v1/models/suggest").json()
    assert shown["object"] == "list"
    expected = {"available_bytes": 6 * GB, "bytes_per_second": 17e9, "other_work": 0.25}
    assert shown["machine"] == expected
    tables = {"chat": SUGGESTIONS, "embeddings": EMBEDDINGS, "reranking": RERANKERS}
    names = [(use, one.name) for use, table in tables.items() for one in table]
    assert [(one["use"], one["id"]) for one in shown["data"]] == names
    best = [one["id"] for one in shown["data"] if one["best"]]
    assert best == ["Qwen/Qwen3-4B-GGUF:Q4_K_M", "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"]
    chat = {one["id"]: one for one in shown["data"]}["Qwen/Qwen3-4B-GGUF:Q4_K_M"]
    assert chat == {
        "id": "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        "use": "chat",
        "note": "chats, tools, reasoning",
        "architecture": "qwen3",
        "memory_bytes": 5 * GB,
        "download_bytes": 2_500_000_000,
        "steps_per_second": pytest.approx(6.8),
        "fits": True,
        "best": True,
    }


def test_only_admins_may(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("sk-1",), admin_key=("sk-boss",))
    assert server.get("/v1/models/suggest", headers={"x-api-key": "sk-1"}).status_code == 403
    assert server.post("/v1/models/suggest", {}, headers={"x-api-key": "sk-1"}).status_code == 405


def test_what_does_not_fit_says_so() -> None:
    small = suggestions_for(Machine(GB, 17.0 * GB))
    assert [one.id for one in small.data if one.fits and one.use == "chat"] == ["smollm2-135m"]


def test_a_measurement_serves_a_minute_and_runs_in_a_thread() -> None:
    measure, now = Measurements(), [100.0]
    kept = KeptMachine(measure, lambda: now[0])

    async def ask() -> None:
        measure.gate.clear()
        asking = [asyncio.create_task(kept.get()) for _ in range(3)]
        while not measure.threads:  # the event loop goes on meanwhile
            await asyncio.sleep(0)
        asking[0].cancel()  # its client leaves
        await asyncio.sleep(0)
        measure.gate.set()
        assert await asking[1] == await asking[2] == MACHINE
        assert len(measure.threads) == 1
        now[0] += KEPT_SECONDS - 0.1
        await kept.get()
        assert len(measure.threads) == 1
        now[0] += 0.2
        await kept.get()

    asyncio.run(ask())
    assert len(measure.threads) == 2
    assert threading.current_thread() not in measure.threads


def test_a_failed_measurement_is_not_kept() -> None:
    measure = Measurements()
    measure.error = MemoryError()
    kept = KeptMachine(measure, lambda: 1.0)

    async def ask() -> Machine:
        with pytest.raises(OutOfMemoryError, match="too little free memory"):
            await kept.get()
        measure.error = None
        return await kept.get()

    assert asyncio.run(ask()) == MACHINE
