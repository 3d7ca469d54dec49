"""The record of one HTTP request. The edge makes it, routes fill it, the log and traces read it.

It is all that the server knows of a request beside its body. The request's ASGI scope has it.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from heddle.outputs import FinishReason

if TYPE_CHECKING:
    from collections.abc import Hashable

    from starlette.types import Scope, Send

    from heddle.embedding import EmbeddingParams
    from heddle.engine.streaming.streams import AsyncStreams
    from heddle.errors import HeddleError
    from heddle.outputs import Delta, Usage
    from heddle.sampling_params import SamplingParams
    from heddle.server.http.keys import Key

GONE = "the client closed the connection"

RECORD = "heddle.record"
"""Key of the record in a request's ASGI scope."""
CONTINUATION = "heddle.continuation"
"""Key of the continuation in the ASGI scope of an answer that may go on in another process."""

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")
ID_HEADERS = (b"x-request-id", b"request-id")
"""The headers of a response that have the id. Anthropic's clients read the second one."""
IDENTITY: ContextVar[tuple[Random, int] | None] = ContextVar("identity", default=None)
"""Where the ids in this task's answer come from, and when it began in s since 1970; None: it begins
here, and its ids are new."""


class Continuation(Protocol):
    """An answer that goes on in another process when its own is lost: what the client has of it.

    Attributes:
        begun: whether the head of the answer, and what comes before its first token, was sent.
        is_stream: whether the answer is a stream of events. Any other answer is sent as a whole.
        complete: whether the events after all choices are among those that this process has made.
    """

    begun: bool
    is_stream: bool
    complete: bool

    def known(self, choices: int) -> list[list[int]]:
        """The known tokens of each choice."""
        ...

    def seeded(self, choices: list[SamplingParams]) -> list[SamplingParams]:
        """The parameters of all choices, with a seed each."""
        ...

    def was_sent(self, index: int, delta: Delta) -> bool:
        """Whether the events of the next delta of a choice were sent. If not, they are now."""
        ...

    def fail(self, error: HeddleError) -> None:
        """Note the error that ends the answer."""
        ...


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
        key: the client's API key; None without a valid key.
        ignored: names of the body's fields that have no effect.
        unknown: those of them that the server does not know (`--lenient`).
        send: the connection's own ASGI `send`; None outside of a server. After the start of a
            response, it does the same as the `send` that a route gets, with fewer calls.
        model: name of the model in the answer; None before the body is read.
        params: parameters of the request; None before the body is read.
        n: number of choices of each prompt.
        stream: whether the answer is a stream of events.
        error: why the request failed; None if it did not.
        error_code: code of the error, as in the answer.
        usages: token counts and times of each choice.
        finishes: finish reason of each choice.
        continuation: what other processes know of the answer; None: it stays in this one.
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
    key: Key | None = None
    ignored: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    send: Send | None = None
    model: str | None = None
    params: SamplingParams | EmbeddingParams | None = None
    n: int = 1
    stream: bool = False
    error: str | None = None
    error_code: str | None = None
    usages: list[Usage] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    continuation: Continuation | None = None

    @classmethod
    def of(cls, scope: Scope, send: Send) -> RequestRecord:
        """The record of a request that begins. It has the client's request id, if that is valid."""
        sent = dict(reversed(scope["headers"]))  # of equal headers, the first one counts
        request_id = sent.get(b"x-request-id", b"").decode("latin-1")
        if not _CLIENT_ID.fullmatch(request_id):
            request_id = new_request_id()
        return cls(
            request_id,
            scope["method"],
            scope["path"],
            scope["client"][0] if scope.get("client") else "",
            sent.get(b"traceparent", b"").decode("latin-1"),
            sent.get(b"tracestate", b"").decode("latin-1"),
            send=send,
            continuation=scope.get(CONTINUATION),
        )

    @property
    def client(self) -> Hashable:
        """Identifies the client: the digest of its key, else its address.

        A host with an IPv6 address has 2^64 of them, so its network of 64 bits counts.
        """
        if self.key is not None:
            return self.key.digest
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:  # a proxy may name a client by another word
            return self.address
        if isinstance(address, ipaddress.IPv4Address):
            return address
        return address.ipv4_mapped or int(address) >> 64

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
            if self.continuation is not None:
                self.continuation.fail(error)

    def leave(self) -> None:
        """Note that the client has left before its answer was complete."""
        if self.error is None:
            self.error, self.error_code = GONE, "client_gone"


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; an empty record that nobody reads if the scope has none."""
    record: RequestRecord = scope.get(RECORD) or RequestRecord()
    return record


def fix_identity(seed: int, began_at: int) -> None:
    """Draw the ids in this task's answer from `seed`. It began at `began_at`, in s since 1970.

    An answer that goes on in another process keeps both.
    """
    IDENTITY.set((Random(seed), began_at))


def new_id() -> str:
    """24 hexadecimal digits for an id in an answer."""
    fixed = IDENTITY.get()
    return secrets.token_hex(12) if fixed is None else f"{fixed[0].getrandbits(96):024x}"


def new_request_id() -> str:
    """Make a new unique id."""
    return f"req_{secrets.token_hex(12)}"


def id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response that have the id."""
    return [(name, request_id.encode()) for name in ID_HEADERS]
