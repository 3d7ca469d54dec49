"""Takes new requests into the engine.

It takes none once its gate is closed, while little memory is free, or beyond a client's limits.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from heddle.errors import (
    ClientLimitError,
    EngineClosedError,
    HeddleError,
    InvalidRequestError,
    OutOfMemoryError,
)
from heddle.process_memory import memory_limits
from heddle.sizes import counted, gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from collections.abc import Sequence as Many

    from heddle.config import EngineConfig
    from heddle.engine.adapters import ModelAdapters
    from heddle.engine.health import Poison
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.engine.requests.patience import Patience
    from heddle.engine.requests.request import Request
    from heddle.engine.streaming.delivery import Delivery
    from heddle.engine.wakeup import Cancels, Wakeup
    from heddle.scheduler.scheduler import Scheduler
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import AdapterUse


class Gate:
    """The lock of an engine. It guards everything that callers and the engine thread share.

    The methods that change the gate need the lock. Reading an attribute does not.

    Attributes:
        lock: the lock.
        refusal: why the engine accepts no more requests; None: it accepts them.
        poison: the failure that ended the engine, or None.
        drain: whether a closed engine finishes its requests.
        leaves: whether a closed engine leaves its requests to another one.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.refusal: HeddleError | None = None
        self.poison: Poison | None = None
        self.drain = self.leaves = False
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether the engine accepts no more requests."""
        return self.refusal is not None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the engine's process.

        A fork has no engine thread, and its copy of the lock may be locked for ever.
        """
        return self._pid != os.getpid()

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Hold the lock. If the engine accepts no more requests, raise the reason instead."""
        if self._pid != os.getpid():  # first: the fork's copy of the lock may be locked
            raise EngineClosedError(
                "this process is a fork, and a fork has no engine thread. Load an engine in each"
                " process, or spawn processes"
            )
        with self.lock:
            if self.refusal is not None:
                raise type(self.refusal)(self.refusal.message)
            yield

    def close(self, *, drain: bool) -> None:
        """Accept no more requests. A close without `drain` ends a close with it, not vice versa."""
        self.drain = drain and (self.refusal is None or self.drain)
        self.refuse(EngineClosedError("the engine is closed"))

    def refuse(self, error: HeddleError) -> None:
        """Accept no more requests, because of `error` unless there is an earlier reason."""
        if self.refusal is None:
            self.refusal = error


class Admission:
    """Takes requests into one engine. Any thread may call it.

    Attributes:
        accepted: number of requests whose `on_submit` is still to be called. The lock of the gate
            guards it.
    """

    def __init__(
        self,
        config: EngineConfig,
        gate: Gate,
        wakeup: Wakeup,
        scheduler: Scheduler,
        speculator: Speculator,
        delivery: Delivery,
        patience: Patience,
        limits: ClientLimits,
        cancels: Cancels,
    ) -> None:
        self.accepted = 0
        self._cancels = cancels
        self._memory = FreeMemory(config.min_free_memory)
        self._gate = gate
        self._wakeup = wakeup
        self._scheduler = scheduler
        self._speculator = speculator
        self._delivery = delivery
        self._patience = patience
        self._limits = limits

    def accept(self, requests: list[Request]) -> None:
        """Queue the requests of one client, all or none.

        Raises:
            ContextLengthError, OverloadedError, InvalidRequestError: see `Scheduler.add`.
            OutOfMemoryError: the system has less memory left than `min_free_memory`.
            ClientLimitError: the client has too many requests, or has used too many tokens.
            InvalidRequestError: a request asks for a drafter that this engine does not have.
            EngineClosedError, ModelPoisonedError: the engine's thread ends or has ended, or it runs
                in the parent process of this fork.
        """
        sequences = [request.sequence for request in requests]
        with self._gate.accepting():
            for sequence in sequences:
                if getattr(sequence.params, "speculation", None) is not None:
                    self._speculator.check(sequence)
            self._memory.check()
            if self._limits.are_set:
                self._limits.check(sequences)
            self._scheduler.add(*sequences)
            self._limits.begin(sequences)
            for request in requests:
                request.cancels = self._cancels
                self._delivery.requests[request.sequence.id] = request
            self._patience.begin(requests)
            self.accepted += len(requests)
            self._wakeup.notify()

    def change_limits(self, config: EngineConfig) -> None:
        """Use other limits of the queue and of clients, for requests that come from now on."""
        with self._gate.accepting():
            self._scheduler.set_queue(config.queue)
            self._patience.change(config.queue_timeout)
            self._limits.change(config)

    def go_on(
        self,
        interrupted: Interrupted,
        tries: int,
        new_id: Callable[[], int],
        adapters: ModelAdapters,
    ) -> None:
        """Queue the requests of an engine that has failed.

        No limit refuses them: the failed engine had accepted them. `tries` as for
        `Interrupted.take`.

        Raises:
            EngineClosedError, ModelPoisonedError: this engine has ended. All requests are left.
        """
        requests = interrupted.take(tries)
        loaded = [_adapters_again(request.sequence, adapters) for request in requests]
        with self._gate.accepting():
            interrupted.leave()
            for request, uses in zip(requests, loaded, strict=True):
                request.move(new_id(), self._cancels)
                self._delivery.requests[request.sequence.id] = request
                try:
                    request.sequence.adapters = _or_raise(uses)
                    self._scheduler.add_again(request.sequence)
                except HeddleError as error:  # this engine may also have less memory
                    self._delivery.cancelled.append((request, error))
                if not request.first_step_at:
                    self._patience.begin([request])
            self._limits.begin([request.sequence for request in requests])
            self._wakeup.notify()


def _adapters_again(sequence: Sequence, adapters: ModelAdapters) -> Many[AdapterUse] | HeddleError:
    """The adapters of a sequence of another engine, or why it cannot have them here."""
    params = sequence.params
    if not sequence.adapters:
        return ()
    try:
        adapted = adapters.take(params)
    except HeddleError as error:
        return error
    if adapted is None or adapted.scope(params.cache_salt) != sequence.scope:
        return InvalidRequestError("the adapter has changed since the request began")
    return adapted.uses


def _or_raise(uses: Many[AdapterUse] | HeddleError) -> Many[AdapterUse]:
    if isinstance(uses, HeddleError):
        raise uses
    return uses


@dataclass(slots=True)
class _Client:
    """The usage of one client.

    Attributes:
        requests: its accepted requests that have not ended; each choice counts.
        tokens: tokens that it may still use; negative: it has used too many.
        at: time of `tokens`, in seconds.
    """

    requests: int
    tokens: float
    at: float


class ClientLimits:
    """Limits of each client. The engine calls `check` and `begin` under its lock, `end` without.

    A client has `client_tokens` tokens per minute, prompt and output. They come back evenly, at
    most those of a minute. A client that has used more must wait until its balance is positive. So
    a request is never too large for its client, and its output need not be known.

    Requests without a client, as from a program that uses the library, have no limits. Requests
    count also without limits, because limits may come while they run.

    Attributes:
        are_set: whether there are limits.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._lock = threading.Lock()
        self._clients: OrderedDict[Hashable, _Client] = OrderedDict()  # `_forget` looks in order
        self._set(config)

    def _set(self, config: EngineConfig) -> None:
        self._most_requests, self._most_tokens = config.client_requests, config.client_tokens
        self.are_set = bool(config.client_requests or config.client_tokens)

    def change(self, config: EngineConfig) -> None:
        """Use the limits of other settings. If the tokens change, all clients begin anew."""
        with self._lock:
            if config.client_tokens != self._most_tokens:
                for known in self._clients.values():
                    known.tokens, known.at = float(config.client_tokens), monotonic()
            self._set(config)

    def check(self, sequences: Many[Sequence]) -> None:
        """Check that new sequences of one client can begin now.

        Raises:
            ClientLimitError: the client has too many requests, or has used too many tokens.
        """
        client = sequences[0].client if sequences else None
        if client is None:
            return
        with self._lock:
            known = self._refilled(client)
        if self._most_requests and known.requests + len(sequences) > self._most_requests:
            raise ClientLimitError(
                f"this client has {counted(known.requests, 'request')} and sends"
                f" {len(sequences)} more; {self._most_requests} may run or wait at once"
                " (client_requests). Wait until one has ended"
            )
        if self._most_tokens and known.tokens <= 0.0:
            seconds = 60.0 * (1.0 - known.tokens) / self._most_tokens
            raise ClientLimitError(
                f"this client has used its {counted(self._most_tokens, 'token')} per minute"
                f" (client_tokens). Try again in {seconds:.0f} s",
                retry_after=seconds,
            )

    def begin(self, sequences: Many[Sequence]) -> None:
        """Count accepted sequences and their prompts."""
        for sequence in sequences:
            self._count(sequence, 1, sequence.prompt_tokens)

    def end(self, sequence: Sequence) -> None:
        """Count the output of a sequence that has ended."""
        self._count(sequence, -1, sequence.output_tokens)

    def _count(self, sequence: Sequence, requests: int, tokens: int) -> None:
        if sequence.client is None:
            return
        with self._lock:
            known = self._refilled(sequence.client)
            known.requests += requests
            known.tokens -= tokens

    def _refilled(self, client: Hashable) -> _Client:
        """The client, with the tokens that it may use now."""
        now = monotonic()
        self._forget(now)
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Client(0, float(self._most_tokens), now)
        self._refill(known, now)
        return known

    def _refill(self, known: _Client, now: float) -> None:
        earned = (now - known.at) * self._most_tokens / 60.0
        known.tokens = min(known.tokens + earned, float(self._most_tokens))
        known.at = now

    def _forget(self, now: float) -> None:
        """Drop clients that have no requests and all their tokens.

        Looks at two clients, in turns. At most one is new since the last look, so those with
        nothing to remember are at most about half of all.
        """
        for _ in range(min(2, len(self._clients))):
            client, known = self._clients.popitem(last=False)
            self._refill(known, now)
            if known.requests or (self._most_tokens and known.tokens < self._most_tokens):
                self._clients[client] = known


class FreeMemory:
    """Refuses new requests while the system has little memory left.

    Attributes:
        SECONDS: the least time between two readings of the limits. One takes 0.05 ms.
    """

    SECONDS = 0.5

    def __init__(self, least: int) -> None:
        """`least` is the memory to keep free, in bytes; 0: no check."""
        self._least = least
        self._limits: dict[str, int] = {}
        self._read_at = -math.inf

    def check(self) -> None:
        """Check that the memory to keep free is there.

        Raises:
            OutOfMemoryError: less is available under one of the system's limits.
        """
        if not self._least:
            return
        now = monotonic()
        if now - self._read_at >= self.SECONDS:
            self._limits, self._read_at = memory_limits(), now
        if min(self._limits.values(), default=self._least) >= self._least:
            return
        source, left = min(self._limits.items(), key=lambda limit: limit[1])
        raise OutOfMemoryError(
            f"new requests wait for memory: {source} is {gigabytes(left)}; min_free_memory keeps"
            f" {gigabytes(self._least)} free. Try again later, or set a smaller min_free_memory",
            param="min_free_memory",
        )
