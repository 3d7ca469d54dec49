"""Counts which functions of the package one streamed chat runs: to the queue, in a step, and back.

    python scripts/road.py [--list]

Starts the tests' talking engine behind a live server, posts one chat four times, and records the
last three with profile hooks in every thread. It prints files and functions of three parts:

- in: from the first byte of the request to the queue of the scheduler;
- step: a step in the middle of the answer, from one plan to the next, with what it delivers;
- out: from the result of a step to the bytes of its events.

Steps last some milliseconds, as those of a model do, so the event loop sends the deltas of a step
before the next one ends. Of the steps of a chat, the one with the most functions counts. Of the
three chats, the one with the fewest functions in a part counts: what a server does once or twice a
second (it looks for slow requests) is no part of a chat. It measures memory only before the first
chat, because on a busy machine each chat would take long enough for another measurement. `--list`
also names the functions of each part, and of all of the last chat. Needs the test extra.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import heddle
from heddle.engine.requests.admission import FreeMemory
from live_server import live_server
from talking_model import talking_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from heddle.step import StepResult

SOURCE = f"{Path(heddle.__file__).parent}/"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
_UNNAMED = ("<genexpr>", "<lambda>", "comp>")
_CHATS = 3
_SETTLE = 0.1  # seconds until a server has no more to do
_STEP = 0.01  # seconds of a step


class Call(NamedTuple):
    """A call of a function of the package."""

    thread: str
    file: str
    function: str


class Recorder:
    """Records calls while it is on."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or not code.co_filename.startswith(SOURCE):
            return
        name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
        if not any(part in name for part in _UNNAMED):
            thread = threading.current_thread().name
            self.calls.append(Call(thread, code.co_filename.removeprefix(SOURCE), name))

    def record(self, address: tuple[str, int]) -> list[Call]:
        """The calls of one chat."""
        time.sleep(_SETTLE)
        self.calls = []
        self.is_on = True
        answer = post(address)
        time.sleep(_SETTLE)
        self.is_on = False
        assert b"data: [DONE]" in answer, answer[:300]
        return self.calls


def record_chats() -> list[list[Call]]:
    """The calls of each of three equal streamed chats, in all threads, in order."""
    FreeMemory.SECONDS = math.inf
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        with talking_engine(TEMPLATE) as (engine, executor), live_server(engine) as live:
            executor.answers = ("hey you over there",)
            collect = executor.collect

            def collect_later() -> StepResult:
                time.sleep(_STEP)
                return collect()

            executor.collect = collect_later  # type: ignore[method-assign]
            post(live.address)
            return [recorder.record(live.address) for _ in range(_CHATS)]
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def post(address: tuple[str, int]) -> bytes:
    """The bytes of the answer to a chat, over a connection of its own."""
    message = {"role": "user", "content": "hi"}
    body = json.dumps({"messages": [message], "max_tokens": 16, "stream": True, "seed": 1}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def parts_of(calls: list[Call]) -> dict[str, list[Call]]:
    """The calls of each part of the road."""
    loop = calls[0].thread
    queued = next(i for i, call in enumerate(calls) if call.function == "Scheduler.add")
    steps, outs = zip(*_windows(calls, loop), strict=True)
    return {
        "in": [call for call in calls[: queued + 1] if call.thread == loop],
        "step": max(steps, key=distinct),
        "out": max(outs, key=distinct),
    }


def _windows(calls: list[Call], loop: str) -> Iterator[tuple[list[Call], list[Call]]]:
    """Step and way out of each step in the middle of the answer."""
    plans = [i for i, call in enumerate(calls) if call.function == "Scheduler.schedule"]
    results = [i for i, call in enumerate(calls) if call.function == "Scheduler.update"]
    for first, second, third in zip(plans[2:-3], plans[3:-2], plans[4:-1], strict=True):
        result = next(i for i in results if i > first)
        step = [call for call in calls[first:second] if call.thread != loop]
        late = [call for call in calls[second:third] if call.thread == loop or _delivers(call)]
        yield step, calls[result:second] + late


def _delivers(call: Call) -> bool:
    return "deliver" in call.function.lower() or "streams" in call.file or "detok" in call.file


def distinct(part: list[Call]) -> int:
    """Number of functions in a part."""
    return len({(call.file, call.function) for call in part})


def report(chats: list[list[Call]], *, listed: bool) -> dict[str, Any]:
    """Files, functions and calls of each part; `listed` also names the functions of each file."""
    parts = [parts_of(chat) for chat in chats]
    found = {
        name: _counts(min((part[name] for part in parts), key=distinct), listed=listed)
        for name in parts[0]
    }
    return found | ({"chat": _counts(chats[-1], listed=True)} if listed else {})


def _counts(part: list[Call], *, listed: bool) -> dict[str, Any]:
    files = dict.fromkeys(call.file for call in part)
    found = {"files": len(files), "functions": distinct(part), "calls": len(part)}
    names = {file: [*dict.fromkeys(c.function for c in part if c.file == file)] for file in files}
    return found | ({"names": names} if listed else {})


if __name__ == "__main__":
    print(json.dumps(report(record_chats(), listed="--list" in sys.argv), indent=1))
