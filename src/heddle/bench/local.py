"""Loads on an engine in this process: prompts alone, and decoding at a given depth of context."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from heddle.bench.figures import Stream
from heddle.errors import ConfigError
from heddle.state import PAGE_TOKENS, pages_for
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.engine import Engine
    from heddle.engine.telemetry import EngineSnapshot
    from heddle.errors import HeddleError
    from heddle.types import Delta


_GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Run:
    """One load.

    Attributes:
        streams: of its requests.
        before, after: the engine at the beginning and at the end of what is measured.
    """

    streams: tuple[Stream, ...]
    before: EngineSnapshot
    after: EngineSnapshot

    @property
    def overhead(self) -> float:
        """Part of the time of steps in which the executor did not compute: 0 to 1."""
        steps = self.after.step_seconds - self.before.step_seconds
        return 1 - (self.after.compute_seconds - self.before.compute_seconds) / steps


class PromptSource:
    """Random prompts that never repeat, the same in every run: no cache has met one before."""

    def __init__(self, engine: Engine) -> None:
        tokenizer = engine.model.tokenizer
        size = tokenizer.vocabulary_size
        self._tokens = [token for token in range(size) if not tokenizer.is_special(token)]
        self._random = random.Random(0)

    def take(self, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` tokens."""
        return [self._random.choices(self._tokens, k=length) for _ in range(count)]


def run_prompts(engine: Engine, prompts: Sequence[Sequence[int]]) -> Run:
    """Compute the prompts, all sent at once, up to one token each.

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
    """Send the prompts at once; when all are computed, measure `tokens` further ones of each.

    Streams whose prompt is computed early run on until then, so that all run to the end. What they
    did before is no part of the streams returned. `params` must let them go on for so long.

    Raises:
        HeddleError: a request was refused or failed.
        ConfigError: a stream met the end of its context first.
    """
    load = _Load(engine, prompts, params, tokens)
    load.measured.wait()
    load.cancel()
    load.wait()
    if load.before is None or load.after is None:
        raise ConfigError(
            f"--depths: a stream reached the end of its context, {engine.context} tokens, before"
            f" all had made {tokens}; measure less"
        )
    return Run(load.streams(), load.before, load.after)


def check_fits(engine: Engine, streams: int, context: int) -> None:
    """Refuse decoding that would not run at once.

    Raises:
        ConfigError: the context or the KV cache does not hold it.
    """
    pages = engine.snapshot().pages_total
    if context > engine.context:
        raise ConfigError(
            f"--depths: {context} tokens, generated ones included, do not fit the context of"
            f" {engine.context}; measure less"
        )
    if streams * pages_for(context) > pages:
        raise ConfigError(
            f"--depths: {streams} streams of {context} tokens do not fit the KV cache of"
            f" {pages * PAGE_TOKENS}; raise --kv-cache or measure less"
        )


@dataclass(slots=True, eq=False)
class _Request:
    """What a sink notes. `goal` is how many outputs the load waits for."""

    prompt_tokens: int
    arrivals: list[float] = field(default_factory=list)
    goal: int = 1
    error: HeddleError | None = None
    over: threading.Event = field(default_factory=threading.Event)


class _Load:
    """Requests submitted together. Its counting happens in the sinks, in the engine thread.

    Attributes:
        before: the engine when the last request had made its first output.
        after: the engine when each had made `tokens` more; None as long as it did not come to that.
        measured: set when that is so, or never will be.
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
        """Return when all requests have ended.

        Raises:
            HeddleError: one ended with an error.
        """
        for request in self._requests:
            request.over.wait()
        for request in self._requests:
            if request.error is not None:
                raise request.error

    def streams(self) -> tuple[Stream, ...]:
        """The last `tokens` outputs up to the goal and the one before; with 0 tokens the first."""
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
