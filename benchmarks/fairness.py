"""Measures how a flood of one client delays the first tokens of another, over HTTP.

    python benchmarks/fairness.py [MODEL] [--requests N] [--streams N] [--one-key]

A server has two API keys. A guest sends requests one after the other, each with a new prompt, and
pauses a moment between them. First the server is calm. Then the other key floods it: as many
requests as `--streams` are always running or waiting, more than there are slots. The script
compares the guest's times to first token. With `--one-key`, the flood has the guest's key, so both
are one client.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heddle.config import DEFAULT_MODEL
from heddle.extensions.bench.machine import describe
from heddle.extensions.bench.other_work import OtherWork
from heddle.extensions.bench.servers import running

if TYPE_CHECKING:
    from collections.abc import Iterator

GUEST_WORDS, GUEST_TOKENS, PAUSE = 150, 16, 0.2
FLOOD_WORDS, FLOOD_TOKENS = 60, 200


def text(words: int) -> str:
    """A prompt that was not sent before."""
    vocabulary = ["river", "stone", "cloud", "table", "seven", "walk", "under", "bright"]
    return " ".join(random.choices(vocabulary, k=words))


def first_token(url: str, key: str, words: int, tokens: int) -> float | None:
    """Seconds to the first token of a request, read to its end; None if the server refused it."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    body = {"prompt": text(words), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    headers = {"content-type": "application/json", "x-api-key": key}
    began, first = time.perf_counter(), None
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status == http.client.OK:
        for line in answer:
            if first is None and line.startswith(b"data: "):
                first = time.perf_counter() - began
    connection.close()
    return first


@dataclass
class Flood:
    """Clients that send requests with one key without pause.

    Attributes:
        answered, refused: numbers of requests.
    """

    url: str
    key: str
    answered: int = 0
    refused: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def _send(self) -> None:
        while not self._over.is_set():
            if first_token(self.url, self.key, FLOOD_WORDS, FLOOD_TOKENS) is None:
                self.refused += 1
                self._over.wait(1.0)
            else:
                self.answered += 1

    @contextmanager
    def running(self, streams: int) -> Iterator[None]:
        """Run the flood; it ends with the server."""
        for _ in range(streams):
            threading.Thread(target=self._quietly, daemon=True).start()
        yield
        self._over.set()

    def _quietly(self) -> None:
        try:
            self._send()
        except OSError:
            return  # the server has stopped


def measure(url: str, requests: int) -> list[float]:
    """Times to first token of the guest, in ascending order."""
    times = []
    for _ in range(requests):
        seconds = first_token(url, "guest", GUEST_WORDS, GUEST_TOKENS)
        assert seconds is not None, "the guest was refused"
        times.append(seconds)
        time.sleep(PAUSE)
    return sorted(times)


def show(name: str, times: list[float], other: float | None) -> None:
    """Print a row: median, 99th percentile (the largest of less than 100) and the largest time."""
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    share = "" if other is None else f"   other work {other:.0%}"
    print(f"{name:8} p50 {times[len(times) // 2]:.3f} s   p99 {p99:.3f} s{share}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--streams", type=int, default=60, help="requests of the flood at once")
    parser.add_argument("--one-key", action="store_true", help="flood with the guest's key")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    machine = describe("heddle")
    print(f"{machine['cpu']}, {machine['cores']} cores; {arguments.model}")
    command = [sys.executable, "-m", "heddle", "serve", arguments.model, "--port", "0"]
    command += ["--threads", str(arguments.threads), "--api-key", "guest,flood"]
    with running("heddle", command) as (pid, url):
        measure(url, 5)  # the pace learns the times of steps
        work = OtherWork([pid])
        calm = measure(url, arguments.requests)
        show("calm", calm, work.share())
        flood = Flood(url, "guest" if arguments.one_key else "flood")
        with flood.running(arguments.streams):
            time.sleep(5.0)  # its requests fill the slots
            work = OtherWork([pid])
            flooded = measure(url, arguments.requests)
            show("flooded", flooded, work.share())
        print(f"the flood: {flood.answered} answered, {flood.refused} refused")
        print(f"ratio: p50 {flooded[len(flooded) // 2] / calm[len(calm) // 2]:.2f}", end="")
        print(f", largest {flooded[-1] / calm[-1]:.2f}")


if __name__ == "__main__":
    main()
