"""`heddle top`: what it shows of a server, and how it ends."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from heddle.cli import run
from heddle.extensions.top import feed as feeds
from heddle.extensions.top.command import show
from heddle.extensions.top.feed import Feed, Loss
from heddle.extensions.top.keys import pressed_keys
from heddle.extensions.top.picture import picture
from heddle.extensions.top.seen import SECONDS, Seen
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running

BODY = {"prompt": "hello there", "max_tokens": 5, "ignore_eos": True}
SIZES = {"name": "m", "slots": 4, "context": 512, "device": "cpu", "page_bytes": 10}
STATE: dict[str, Any] = {
    **dict.fromkeys(("running", "waiting", "evictions", "preemptions", "hits", "misses"), 0),
    **{"tokens_per_second": 1234.4, "prompt_tokens_per_second": 0.0, "utilisation": 0.5},
    **{"pages_used": 2, "cached_bytes": 30, "hit_tokens": 3, "query_tokens": 4},
    **{"drafted_tokens": 0, "accepted_tokens": 0, "queue": [["client 1", 2]]},
    **{"ttft_ms": {"p50": 1, "p90": 2.5, "p99": 20_000}, "itl_ms": None},
    "memory": {"model_bytes": 50, "cache_bytes": 100, "disk_bytes": None},
}
REQUEST = {
    **{"id": 7, "slot": 1, "state": "decode", "started": 90.0},
    **{"prompt_tokens": 11, "output_tokens": 3},
}


@pytest.fixture
def held(serve: Callable[..., Running]) -> Iterator[Running]:
    """A server with a request that has come to its second step and stays there."""
    server = serve(slots=3)
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 2 else None
    with server.stream("/v1/completions", BODY | {"stream": True}):
        server.until(lambda: server.executor.steps >= 3)
        yield server
        server.executor.gate.set()


def watched(**sizes: Any) -> Seen:
    """What was seen of one model with a running request."""
    seen = Seen()
    seen.take(("hello", {"version": "1", "now": time.monotonic(), "models": [SIZES | sizes]}))
    now = seen.now
    rows = [[0, 5, 0, 0, 9, 0, 0], [1, 7, 1, 11, 1, 0, 0], [2, 8, 1, 11, 3, 2, 1]]
    steps = [[1, now - SECONDS / 2, 3000.0, rows], [2, now, 1.0, [[2, 8, 1, 14, 3, 2, 0]]]]
    seen.take(("steps", {"model": "m", "lost": 2, "steps": steps}))
    seen.take(("requests", {"model": "m", "requests": [REQUEST | {"started": now - SECONDS}]}))
    seen.take(("state", {"model": "m", "t": now, **STATE}))
    return seen


def lines_of(seen: Seen, width: int = 120, height: int = 50, *, plain: bool = False) -> list[str]:
    return picture(seen, "http://h", width, height, plain=plain).plain.split("\n")


def test_one_picture_without_a_terminal(held: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", held.url]) == 0
    shown = capsys.readouterr().out
    assert held.engine.model.info.id in shown
    assert f"{held.url}  q: end" in shown
    assert "3 slots of 512 tokens" in shown
    assert "  0 decode" in shown and "  2 free" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_pictures_follow_until_a_key(held: Running, environment: dict[str, str]) -> None:
    out = StringIO()
    console = Console(
        file=out, force_terminal=True, width=60, height=20, _environ={"TERM": "xterm"} | environment
    )
    deadline = time.monotonic() + PATIENCE
    given: list[str] = []

    def pressed() -> str:
        assert not given, "the key did not end it"
        assert time.monotonic() < deadline
        if "decode" not in out.getvalue():
            return ""
        given.append("xQ")
        return given[0]

    feed = Feed(held.url, None)
    show(feed, held.url, console, pressed)
    feed.close()
    shown = out.getvalue()
    assert "decode" in shown
    assert shown.index("\x1b[?1049h") < shown.index("decode") < shown.index("\x1b[?1049l")
    assert ("\x1b[34m" in shown) is not bool(environment)


def test_an_interrupt_ends_it_quietly(held: Running) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    feed = Feed(held.url, None)
    try:
        show(feed, held.url, Console(file=StringIO(), force_terminal=True), interrupted)
    except KeyboardInterrupt:
        pytest.fail("the interrupt was not taken")
    finally:
        feed.close()


def test_no_server_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "127.0.0.1:9/v1/"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("heddle: no server answers at http://127.0.0.1:9: Connection refused.")


def test_a_refusal_says_why(serve: Callable[..., Running], capsys) -> None:
    server = serve(api_key=("sk-1",))
    assert run(["top", server.url]) == 2
    assert "an API key is missing" in capsys.readouterr().err
    assert run(["top", server.url, "--key", "sk-1"]) == 0
    assert run(["top", f"{server.url}/none", "--key", "sk-1"]) == 2
    assert "has no route /v1/engine/events" in capsys.readouterr().err


class Brief(BaseHTTPRequestHandler):
    """Sends one event, and ends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'event: hello\ndata: {"models": []}\n\n')

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def brief_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Brief) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def test_it_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_PAUSE_SECONDS", 0.0)
    with brief_server() as url:
        feed = Feed(url, None)
        events = [feed.events.get(timeout=PATIENCE) for _ in range(3)]
        hello = ("hello", {"models": []})
        assert events == [hello, Loss("the server ended the events"), hello]
    losses = (feed.events.get(timeout=PATIENCE) for _ in iter(int, 1))
    assert next(one for one in losses if isinstance(one, Loss) and "refused" in one.reason)
    feed.close()


def test_a_loss_is_shown() -> None:
    seen = watched()
    seen.take(Loss("the server ended the events"))
    assert lines_of(seen)[1] == "the server ended the events; trying again"


def test_the_figures_of_a_model() -> None:
    text = "\n".join(lines_of(watched()))
    assert "output 1,234 tokens/s" in text
    assert "first token 0.001/0.0025/20 s" in text
    assert "between tokens -" in text
    assert "from the cache 75%" in text
    assert "queue  client 1 x 2" in text
    assert "in use 20 B  cached 30 B  free 50 B" in text
    assert "2 steps lost" in text


def test_bars_show_what_slots_did() -> None:
    lines = lines_of(watched(), plain=True)
    first, second, third, fourth = (
        next(line for line in lines if line.startswith(f"{slot:>3} "))[32:] for slot in range(4)
    )
    assert first.strip() and set(first.strip()) == {":"}
    assert len(first.strip()) == pytest.approx(0.1 * len(first), abs=2)
    assert set(second) == {".", "#"}
    assert set(third.strip()) == {"=", " ", "x"} and third.rstrip().endswith("x")
    assert not fourth.strip()
    assert "tokens 13" in "\n".join(lines) and "step 3,000 ms" in "\n".join(lines)


@pytest.mark.parametrize("width", [10, 20, 40, 70, 200])
@pytest.mark.parametrize("height", [5, 24])
def test_pictures_fit_the_terminal(width: int, height: int) -> None:
    lines = lines_of(watched(slots=64), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= max(width, 20)
    if height == 24 and width >= 70:
        assert any("more slots, 0 of them run" in line for line in lines)


def test_a_model_that_changed_is_a_new_one() -> None:
    seen = watched()
    seen.take(("hello", {"version": "1", "now": 0.0, "models": [SIZES]}))
    assert seen.models["m"].state
    seen.take(("hello", {"version": "1", "now": 0.0, "models": [SIZES | {"slots": 5}]}))
    assert not seen.models["m"].state
    assert not seen.is_complete
    seen.take(("state", {"model": "gone", "t": 0}))


def test_old_steps_and_ended_requests_are_forgotten() -> None:
    seen = watched()
    model = seen.models["m"]
    seen.take(("requests", {"model": "m", "requests": [REQUEST | {"state": "done"}]}))
    assert not model.running
    seen.take(("state", {"model": "m", "t": seen.now + SECONDS - 1, **STATE}))
    assert len(model.steps) == len(model.work[2]) == 1
    assert not model.work[0]


def test_keys_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with pressed_keys() as pressed:
            assert pressed() == ""
            os.write(ours, b"q")
            assert select.select([theirs], [], [], PATIENCE)[0]
            assert pressed() == "q"
    os.close(ours)


def test_without_a_terminal_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, b"q")
    with os.fdopen(read) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        with pressed_keys() as pressed:
            assert pressed() == ""
    os.close(write)
    monkeypatch.setattr(sys, "stdin", StringIO("q"))
    with pressed_keys() as pressed:
        assert pressed() == ""
