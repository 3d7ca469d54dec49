"""SIGTERM at any moment: every answer of `heddle serve` has an end, and the exit code is 0."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.model

STREAMS = 6
DONE = "data: [DONE]"


class Served:
    """A process of `heddle serve` with one slot fewer than there are streams."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.begun = threading.Semaphore(0)  # one for each answer that has begun

    def stream(self, moment: int, reached: threading.Event) -> tuple[int, list[str]]:
        """Status and events of one answer. Sets `reached` at event `moment`."""
        body = {"prompt": "The sea is", "max_tokens": 60, "ignore_eos": True, "stream": True}
        events: list[str] = []
        with httpx.stream("POST", self.url + "/completions", json=body, timeout=PATIENCE) as answer:
            self.begun.release()
            for line in answer.iter_lines():
                events += [line] if line else []
                if len(events) == moment:
                    reached.set()
        return answer.status_code, events


@contextmanager
def served(log: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--slots", str(STREAMS - 1)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        watchdog = threading.Timer(4 * PATIENCE, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if line.startswith("ready"))
            yield Served(process, ready.split()[1])
        finally:
            watchdog.cancel()
            process.kill()


def read(events: list[str]) -> list[dict[str, Any]]:
    """The objects of an answer's events. Their text may say anything, "error" too."""
    return [json.loads(event.removeprefix("data: ")) for event in events if event != DONE]


def ends_well(status: int, events: list[str]) -> bool:
    """Whether an answer came to an end that its client can see: whole, cut with an error, or a 503.

    Without the drain's time, a stream ends with an error event.
    """
    if status == 503:
        return True
    said = read(events)
    finished = "error" in said[-1] or said[-1]["choices"][0]["finish_reason"] == "length"
    return status == 200 and events[-1] == DONE and finished


@pytest.mark.parametrize(("seed", "drain"), [(1, "0"), (2, "0"), (3, "30")])
def test_every_answer_has_an_end(model_path: Path, tmp_path: Path, seed: int, drain: str) -> None:
    moment, log = random.Random(seed).randrange(1, 40), tmp_path / "log"
    reached = threading.Event()
    with served(log, "--drain", drain) as server, ThreadPoolExecutor(STREAMS) as clients:
        answers = [clients.submit(server.stream, moment, reached) for _ in range(STREAMS)]
        assert all(server.begun.acquire(timeout=PATIENCE) for _ in answers)
        assert reached.wait(PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        results = [answer.result(PATIENCE) for answer in answers]
        assert server.process.wait(PATIENCE) == 0
    assert all(ends_well(*result) for result in results), results
    if drain != "0":
        assert not any("error" in one for _, events in results for one in read(events))
    assert "Traceback" not in log.read_text()


def test_a_second_signal_ends_the_wait(model_path: Path, tmp_path: Path) -> None:
    reached = threading.Event()
    with served(tmp_path / "log", "--drain", "3600") as server, ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.stream, 2, reached)
        assert reached.wait(PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert ends_well(*answer.result(PATIENCE))
