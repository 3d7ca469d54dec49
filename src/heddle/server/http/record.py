"""The record of one HTTP request. Routes fill the record; the log and traces read it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.outputs import FinishReason

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.embedding import EmbeddingParams
    from heddle.engine.streams import AsyncStreams
    from heddle.errors import HeddleError
    from heddle.outputs import Usage
    from heddle.sampling_params import SamplingParams

GONE = "the client closed the connection"

_KEY = "heddle.record"
"""Key of the record in a request's ASGI scope."""


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request.

    Attributes:
        request_id: id of the request, as in `x-request-id`.
        method, path: as the client sent them.
        address: address of the client; empty if it is unknown.
        traceparent, tracestate: headers of W3C Trace Context; empty without them.
        started: when the request began, by `time.perf_counter`.
        started_ns: the same moment, in ns since 1970.
        submitted: when its choices were first submitted to the engine, by `time.perf_counter`; 0
            before.
        seconds: time until the answer was sent, or given up.
        status: HTTP status of the answer; 0 before it begins.
        key: name of the client's API key; None without a name.
        model: name of the model in the answer; None before the body is read.
        params: parameters of the request; None before the body is read.
        n: number of choices of each prompt.
        stream: whether the answer is a stream of events.
        error: why the request failed; None if it did not.
        error_code: code of the error, as in the answer.
        usages: token counts and times of each choice.
        finishes: finish reason of each choice.
    """

    request_id: str = ""
    method: str = ""
    path: str = ""
    address: str = ""
    traceparent: str = ""
    tracestate: str = ""
    started: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    submitted: float = 0.0
    seconds: float = 0.0
    status: int = 0
    key: str | None = None
    model: str | None = None
    params: SamplingParams | EmbeddingParams | None = None
    n: int = 1
    stream: bool = False
    error: str | None = None
    error_code: str | None = None
    usages: list[Usage] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts. Each prompt counts once, as in the answer's `usage`."""
        return sum(usage.prompt_tokens for usage in self.usages[:: self.n])

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that no choice of their prompt computed."""
        groups = (
            self.usages[start : start + self.n] for start in range(0, len(self.usages), self.n)
        )
        return sum(min(usage.cached_tokens for usage in group) for group in groups)

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all choices."""
        return sum(usage.completion_tokens for usage in self.usages)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds in the queue, of prefill and of decode; of several choices, the longest."""
        usages = self.usages
        return {
            "queue": max((usage.queue_seconds for usage in usages), default=0.0),
            "prefill": max((usage.prompt_seconds for usage in usages), default=0.0),
            "decode": max((usage.completion_seconds for usage in usages), default=0.0),
        }

    def describe(
        self,
        model: str,
        params: SamplingParams | EmbeddingParams,
        *,
        n: int = 1,
        stream: bool = False,
    ) -> None:
        """Note what the body asks for."""
        self.model, self.params, self.n, self.stream = model, params, n, stream

    def submit(self) -> str:
        """Note that choices are submitted now. Returns the name for the engine's log lines."""
        self.submitted = self.submitted or time.perf_counter()
        return self.request_id

    def add(self, streams: AsyncStreams) -> None:
        """Note usage and finish reason of choices that have ended or are cancelled now."""
        for ticket in streams.tickets:
            self.usages.append(ticket.usage)
            self.finishes.append(ticket.finish or FinishReason.CANCELLED)

    def fail(self, error: HeddleError) -> None:
        """Note the error that ends the request. The first error counts."""
        if self.error is None:
            self.error, self.error_code = error.message, error.code

    def leave(self) -> None:
        """Note that the client has left before its answer was complete."""
        if self.error is None:
            self.error, self.error_code = GONE, "client_gone"


def set_record(scope: Scope, record: RequestRecord) -> None:
    """Store the record of a request in its scope."""
    scope[_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; an empty record that nobody reads if the scope has none."""
    record: RequestRecord = scope.get(_KEY) or RequestRecord()
    return record
