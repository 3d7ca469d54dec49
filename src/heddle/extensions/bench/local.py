"""Loads on an engine in this process: prefill alone, and decode at a given context depth."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.extensions.bench.figures import Stream
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, pages_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.engine import Engine
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.errors import HeddleError
    from heddle.outputs import Delta


# Benchmarks repeat themselves: guesses would be right more often than in use.
_GREEDY = SamplingParams(temperature=0, ignore_eos=True, speculation=Speculation("off"))


@dataclass(frozen=True, slots=True)
class Run:
    """One load.

    Attributes:
        streams: one for each request.
        before, after: snapshots of the engine at the beginning and at the end of the measurement.
    """

    streams: tuple[Stream, ...]
    before: EngineSnapshot
    after: EngineSnapshot

    @property
    def overhead(self) -> float:
        """Share of the steps' time in which the executor did not compute: 0 to 1."""
        steps = self.after.step_seconds - self.before.step_seconds
        return 1 - (self.after.compute_seconds - self.before.compute_seconds) / steps


class PromptSource:
    """Random prompts, the same in every run. All differ, so the prefix cache never has them."""

    def __init__(self, engine: Engine) -> None:
        tokenizer = engine.model.tokenizer
        size = tokenizer.vocabulary_size
        self._tokens = [token for token in range(size) if not tokenizer.is_special(token)]
        self._random = random.Random(0)

    def take(self, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` tokens."""
        return [self._random.choices(self._tokens, k=length) for _ in range(count)]


def run_prompts(engine: Engine, prompts: Sequence[Sequence[int]]) -> Run:
    """Send the prompts at once and generate one token for each.

    Raises:
        HeddleError: a request was refused or failed.
    """
    before = engine.snapshot()
    load = _Load(engine, prompts, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    load.wait()
    return Run(load.streams(), before, engine.snapshot())


def run_decode(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    params: SamplingParams = _GREEDY,
) -> Run:
    """Send the prompts at once. When all are computed, measure the next `tokens` tokens of each.

    A stream whose prompt is computed early generates tokens until the others begin, so that all
    streams run during the measurement. The returned streams leave out earlier tokens. `params` must
    allow these additional tokens.

    Raises:
        HeddleError: a request was refused or failed.
        ConfigError: a stream reached the end of its context first.
    """
    load = _Load(engine, prompts, params, tokens)
    load.measured.wait()
    load.cancel()
    load.wait()
    if load.before is None or load.after is None:
        raise ConfigError(
            f"--depths: a stream filled its context of {engine.context} tokens before all had"
            f" generated {tokens}; lower --depths or --new-tokens"
        )
    return Run(load.streams(), load.before, load.after)


def check_fits(engine: Engine, streams: int, context: int) -> None:
    """Refuse streams that cannot all decode at the same time.

    Raises:
        ConfigError: the context or the KV cache is too small for the streams.
    """
    pages = engine.snapshot().pages_total
    if context > engine.context:
        raise ConfigError(
            f"--depths: {context} tokens, generated ones included, do not fit the context of"
            f" {engine.context}; lower --depths or --new-tokens"
        )
    if streams * pages_for(context) > pages:
        raise ConfigError(
            f"--depths: {streams} streams of {context} tokens do not fit the KV cache of"
            f" {pages * PAGE_TOKENS}; raise --kv-cache, or lower --depths or --streams"
        )


@dataclass(slots=True, eq=False)
class _Request:
    """The records of one request's sink. The load waits for the first `goal` outputs."""

    prompt_tokens: int
    arrivals: list[float] = field(default_factory=list)
    goal: int = 1
    error: HeddleError | None = None
    over: threading.Event = field(default_factory=threading.Event)


class _Load:
    """Requests submitted together. The sinks count outputs, in the engine thread.

    Attributes:
        before: snapshot of the engine when the last request had its first output.
        after: snapshot of the engine when each request had `tokens` more outputs; None before.
        measured: set when `after` is set, or when a failure makes this impossible.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        tokens: int = 0,
    ) -> None:
        self._engine = engine
        self._tokens = tokens
        self._requests = [_Request(len(prompt)) for prompt in prompts]
        self._missing = len(prompts)  # requests that have not reached their goal
        self.before: EngineSnapshot | None = None
        self.after: EngineSnapshot | None = None
        self.measured = threading.Event()
        self._sent = time.perf_counter()
        self._tickets = engine.submit_many(
            [
                (prompt, params, partial(self._take, request))
                for prompt, request in zip(prompts, self._requests, strict=True)
            ]
        )

    def cancel(self) -> None:
        for ticket in self._tickets:
            ticket.cancel()

    def wait(self) -> None:
        """Wait until all requests have ended.

        Raises:
            HeddleError: a request ended with an error.
        """
        for request in self._requests:
            request.over.wait()
        for request in self._requests:
            if request.error is not None:
                raise request.error

    def streams(self) -> tuple[Stream, ...]:
        """The streams, from the last output before the measurement up to the goal."""
        return tuple(
            Stream(
                self._sent,
                tuple(request.arrivals[request.goal - self._tokens - 1 : request.goal]),
                request.prompt_tokens,
                self._tokens + 1,
            )
            for request in self._requests
        )

    def _take(self, request: _Request, delta: Delta) -> None:
        now = time.perf_counter()
        for _ in delta.tokens:
            request.arrivals.append(now)
            if len(request.arrivals) == request.goal:
                self._reached()
        if delta.finish is not None:
            request.error = delta.error
            request.over.set()
            self.measured.set()

    def _reached(self) -> None:
        self._missing -= 1
        if self._missing > 0:
            return
        if self.before is None:
            self.before = self._engine.snapshot()
            for request in self._requests:
                request.goal = len(request.arrivals) + self._tokens
            self._missing = len(self._requests)
        else:
            self.after = self._engine.snapshot()
            self.measured.set()
