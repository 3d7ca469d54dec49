"""`GET /v1/engine/events`: what viewers see of steps, requests and rates."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx

from fake_loads import until
from heddle.extensions.sight import viewers
from heddle.extensions.sight.frames import Sight, steps_event
from heddle.extensions.sight.recorder import Recorder, Row, Step
from heddle.extensions.sight.viewers import Viewer, Viewers
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pytest

    from fake_executor import FakeExecutor
    from fake_server import Running
    from heddle.engine import Engine

BODY = {"prompt": "hello there", "max_tokens": 5, "ignore_eos": True}


def seen(server: Running, query: str = "", key: str = "") -> Generator[tuple[str, Any], None, None]:
    """The events of a viewer, by name."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{server.url}/v1/engine/events{query}"
    with httpx.stream("GET", url, timeout=PATIENCE, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def first(server: Running, wanted: str, **options: Any) -> Any:
    return next(data for name, data in seen(server, **options) if name == wanted)


def test_a_viewer_sees_the_last_minute_at_once(serve: Callable[..., Running]) -> None:
    server = serve(slots=3)
    server.post("/v1/completions", BODY)
    events = seen(server)
    name, hello = next(events)
    assert (name, hello["admin"]) == ("hello", True)
    model = hello["models"][0]
    assert (model["slots"], model["context"], model["pages"]) == (3, 512, 64)
    _, steps = next(events)
    assert steps["model"] == model["name"]
    (prompt, *decodes) = steps["steps"]
    number, ended, ms, rows = prompt
    assert (number, rows) == (0, [[0, 0, 0, 0, 11, 0, 0]])
    assert [step[3][0][:6] for step in decodes] == [[0, 0, 1, 11 + i, 1, 0] for i in range(4)]
    assert ended <= hello["now"] and ms >= 0
    _, requests = next(events)
    (request,) = requests["requests"]
    assert (request["state"], request["finish"], request["slot"]) == ("done", "length", None)
    assert (request["prompt_tokens"], request["output_tokens"]) == (11, 5)
    times = [request[name] for name in ("submitted", "started", "first_token", "ended")]
    assert times == sorted(times)
    assert request["client"] == "127.0.0.1"
    _, state = next(events)
    assert (state["running"], state["waiting"], state["queue"]) == (0, 0, [])
    assert state["ttft_ms"]["p50"] > 0 and state["itl_ms"]["p99"] > 0
    assert state["limits"]["bytes_per_second"] > 0
    assert state["limits"]["peak_bytes_per_second"] is None
    assert state["memory"]["cache_bytes"] == state["capacity_bytes"]
    events.close()


def test_a_viewer_sees_requests_wait_and_run(serve: Callable[..., Running]) -> None:
    server = serve(slots=1)
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 2 else None
    states: dict[int, list[str]] = {}
    with server.stream("/v1/completions", BODY | {"n": 2, "stream": True}):
        server.until(lambda: server.executor.steps >= 3)
        for name, data in seen(server):
            if name == "state":
                assert data["queue"] in ([["127.0.0.1", 1]], [])
            for one in data["requests"] if name == "requests" else ():
                states.setdefault(one["id"], []).append(one["state"])
                if one["state"] == "decode":
                    server.executor.gate.set()
            if sum("done" in all_ for all_ in states.values()) == 2:
                break
    assert states[0][0] == "decode"
    assert states[1][0] == "waiting"
    assert [all_.count("done") for all_ in states.values()] == [1, 1]


def test_only_admins_see_who_asks(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("sk-1",), admin_key=("sk-boss",))
    key = {"authorization": "Bearer sk-1", "x-request-id": "mine"}
    server.post("/v1/completions", BODY, headers=key)
    shown = {one: first(server, "requests", key=one)["requests"][0] for one in ("sk-1", "sk-boss")}
    assert shown["sk-boss"]["label"] == "mine"
    assert shown["sk-1"]["label"] == ""
    assert shown["sk-1"]["client"].startswith("client ")
    assert shown["sk-boss"]["client"] != shown["sk-1"]["client"]
    assert first(server, "hello", key="sk-1")["admin"] is False
    assert server.get("/v1/engine/events").status_code == 401


def test_a_viewer_may_look_at_one_model_for_some_time(serve: Callable[..., Running]) -> None:
    server = serve()
    name = server.engine.model.info.id
    names = [data.get("model") for kind, data in seen(server, f"?model={name}&seconds=0.01")]
    assert set(names[1:]) <= {name}
    assert server.get("/v1/engine/events?model=none").status_code == 404
    assert server.get("/v1/engine/events?seconds=x").status_code == 400


def test_too_many_viewers_are_refused(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 1)
    server = serve()
    events = seen(server)
    next(events)
    refused = server.get("/v1/engine/events")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    events.close()  # its place is free when the server sees it
    server.until(lambda: server.get("/v1/engine/events?seconds=0.01").status_code == 200)


def test_viewers_do_not_keep_a_server_from_stopping(serve: Callable[..., Running]) -> None:
    server = serve()
    events = seen(server)
    next(events)
    server.server.should_exit = True
    assert "state" in {name for name, _ in events}  # until its end
    server.thread.join(PATIENCE)
    assert not server.thread.is_alive()


def test_a_server_without_sight_says_so(serve: Callable[..., Running]) -> None:
    server = serve(sight=False)
    for path in ("/v1/engine/events", "/v1/prefix_cache/tree"):
        refused = server.get(path)
        assert refused.status_code == 501
        assert "--no-sight" in refused.json()["error"]["message"]


def test_requests_that_arrive_during_a_step_wait(start: Callable[..., Engine]) -> None:
    engine = start(slots=1)
    recorder, executor = Recorder(), cast("FakeExecutor", engine.model.executor)
    engine.thread.call(recorder.begin)
    executor.gate.clear()
    tickets = [engine.submit("hello", SamplingParams(), lambda _: None) for _ in range(3)]
    try:
        until(lambda: recorder.requests()[0].slot >= 0)
        states = [one.state for one in recorder.requests()]
    finally:
        executor.gate.set()
        for ticket in tickets:
            ticket.cancel()
    assert states == ["prefill", "waiting", "waiting"]


def test_a_model_that_is_loaded_again_is_told(start: Callable[..., Engine]) -> None:
    """Its slots may be others, and its steps count anew."""
    former, new = start(slots=2), start(slots=3)
    seen: list[Any] = []
    registry = SimpleNamespace(engines={"m": former}, on_loaded=seen.append)

    async def hellos() -> list[Any]:
        viewers, viewer = Viewers(registry), Viewer("", admin=True)  # type: ignore[arg-type]
        for one in (former, new):
            seen[0]("m", one)
        viewers.add(viewer, lambda: False)
        found = [await hello_of(viewer)]
        registry.engines = {"m": new}
        found.append(await hello_of(viewer))
        viewers.remove(viewer)
        return found

    (first_one,), (second,) = (one["models"] for one in asyncio.run(hellos()))
    assert (first_one["slots"], second["slots"]) == (2, 3)
    assert first_one["since"] < second["since"]


def test_the_next_viewer_sees_the_last_minute_too(engine: Engine) -> None:
    registry = SimpleNamespace(engines={"m": engine}, on_loaded=lambda _: None)

    async def steps_of_two() -> list[bytes]:
        viewers, found = Viewers(registry), []  # type: ignore[arg-type]
        viewers._record("m", engine)
        engine.thread.call(lambda _: None)  # it records now
        engine.complete("hello", SamplingParams(max_tokens=3, ignore_eos=True))
        for _ in range(2):
            viewer = Viewer("", admin=True)
            viewers.add(viewer, lambda: False)
            viewer.frames.get_nowait()
            found.append(viewer.frames.get_nowait() or b"")
            viewers.remove(viewer)
            assert viewers._task is not None
            await viewers._task
        return found

    first_one, second = asyncio.run(steps_of_two())
    assert first_one.splitlines()[:2] == second.splitlines()[:2]
    assert first_one.startswith(b"event: steps")


async def hello_of(viewer: Viewer) -> Any:
    """The next event `hello`."""
    async with asyncio.timeout(PATIENCE):
        while not (frame := await viewer.frames.get() or b"").startswith(b"event: hello"):
            pass
    return json.loads(frame.splitlines()[1].removeprefix(b"data: "))


def test_a_viewer_that_reads_slowly_is_told_what_it_lost(engine) -> None:
    viewer, sight = Viewer("", admin=False), Sight("m", engine, Recorder())
    while not viewer.frames.full():
        viewer.show(sight, 0, b"x")
    viewer.show(sight, 3, b"three")
    viewer.show(sight, 2, b"two")
    while not viewer.frames.empty():
        viewer.frames.get_nowait()
    viewer.show(sight, 0, b"x")
    frame = viewer.frames.get_nowait()
    assert frame == b'event: steps\ndata: {"model":"m","lost":5,"steps":[]}\n\nx'
    viewer.show(sight, 0, b"")
    assert viewer.frames.empty()


def test_a_frame_is_encoded_once_for_all_who_look(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def counted(name: str, steps: Any, lost: int) -> dict[str, Any]:
        encoded.append(steps)
        return steps_event(name, steps, lost)

    monkeypatch.setattr(viewers, "steps_event", counted)
    shown = Viewers(cast("Any", SimpleNamespace(on_loaded=lambda _: None)))
    sight = Sight("m", engine, Recorder())
    looking = [Viewer("", admin=True), Viewer("m", admin=False)]
    other = Viewer("other", admin=True)
    steps = [Step(n, 1.0, 0.001, (Row(0, 0, 1, n, 1, 0, 0),)) for n in range(3)]
    shown._viewers.update((other,))
    shown._send(sight, steps, [], 1.0, with_state=False)
    assert encoded == []  # nobody looks at this model
    shown._viewers.update(looking)
    shown._send(sight, steps, [], 1.0, with_state=False)
    assert encoded == [steps]
    first_one, second = (one.frames.get_nowait() for one in looking)
    assert first_one == second is not None
    assert first_one.startswith(b'event: steps\ndata: {"model":"m","lost":0,"steps":[[0,')
    assert other.frames.empty()
