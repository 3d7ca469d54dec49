"""Real servers on real sockets, with a fake model behind them, in threads of the test's process."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai

from fake_executor import VOCABULARY, FakeExecutor
from fake_eyes import FakeEyes
from fake_model import FakeTokenizer, fake_model
from heddle.config import EngineConfig
from heddle.embedding import Pooling
from heddle.engine import Engine
from heddle.sampling_params import SamplingParams
from heddle.step import Failed, Sampled
from live_server import live_server
from patience import PATIENCE

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from heddle.config import ServerConfig
    from heddle.server.http.process import Server
    from heddle.step import StepResult


class ScoringExecutor(FakeExecutor):
    """Gives token t the log probability -t / 8 after any history."""

    def collect(self) -> StepResult:
        result = super().collect()
        return replace(result, sampled=tuple(self._judge(one) for one in result.sampled))

    def _judge(self, sampled: Sampled | Failed) -> Sampled | Failed:
        params = self.slots[sampled.slot].params
        assert isinstance(params, SamplingParams)
        wanted = params.logprobs
        if wanted is None or isinstance(sampled, Failed):
            return sampled
        top = tuple((token, -token / 8) for token in range(min(wanted, VOCABULARY)))
        return replace(sampled, logprob=-sampled.token / 8, top=top)


class AnyTextTokenizer(FakeTokenizer):
    """Encodes unknown letters as hyphens, so that a test may send any text."""

    def encode(self, text: str, **special: bool) -> list[int]:
        known = "abcdefghijklmnopqrstuvwxyz .-\n"
        text = "".join(letter if letter in known else "-" for letter in text)
        return super().encode(text, **special)


@dataclass
class Running:
    """A server that runs in a thread."""

    server: Server
    engine: Engine
    executor: ScoringExecutor
    address: tuple[str, int]
    url: str
    thread: threading.Thread
    openai: openai.OpenAI

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE, **options)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.url + path, timeout=PATIENCE)

    def stream(self, path: str, body: Any) -> AbstractContextManager[httpx.Response]:
        return httpx.stream("POST", self.url + path, json=body, timeout=PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.001)  # lets other threads run

    def idle(self) -> bool:
        now = self.engine.snapshot()
        return now.running == 0 and now.queue_depth == 0


@contextmanager
def run_server(
    server: ServerConfig,
    context: int = 512,
    bos_id: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    path: Path = Path("fake.gguf"),
    sees: bool = False,
    **settings: Any,
) -> Iterator[Running]:
    """A server with a fake model and its sampling `defaults`; `settings` are its engine's.

    The file at `path` stands for the model's. Only fingerprints depend on it. If it `sees`, it has
    fake eyes.
    """
    executor = ScoringExecutor()
    pooling = Pooling(settings.get("pooling", "mean"))
    fake = fake_model(executor, context=context, pooling=pooling, path=path)
    tokenizer = AnyTextTokenizer(bos_id)
    model = replace(fake, tokenizer=tokenizer, sampling_defaults=defaults or {})
    if sees:
        model = replace(model, eyes=FakeEyes(tokenizer))
    with (
        Engine(model, EngineConfig(**{"speculation": "off"} | settings)) as engine,
        live_server(engine, server) as live,
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        try:
            yield Running(
                live.server, engine, executor, live.address, live.url, live.thread, client
            )
        finally:
            executor.gate.set()
