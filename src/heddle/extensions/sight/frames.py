"""The events of the sight of one model, as values of JSON. README.md beside it lists the fields."""

from __future__ import annotations

import hashlib
import resource
import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Hashable, Iterable, Sequence

    from heddle.engine import Engine
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.extensions.sight.recorder import Recorder, RequestRow, Step
    from heddle.roofline import ModelWork

KEPT_SECONDS = 60.0
_RATE_SECONDS = 5.0
_MOST_CLIENTS = 20
_SHARES = (0.5, 0.9, 0.99)
_STATM = Path("/proc/self/statm")
_SALT = secrets.token_bytes(16)


class Sight:
    """What was seen of one model. The event loop uses it.

    Attributes:
        engine: of the model.
        recorder: of the engine.
        steps: those of the last minute, the oldest first.
    """

    def __init__(self, name: str, engine: Engine, recorder: Recorder) -> None:
        self.name, self.engine, self.recorder = name, engine, recorder
        self.steps, self._ended = recorder.seen_steps, recorder.seen_ended
        self._seen: dict[int, RequestRow] = {}

    def look(self, now: float) -> tuple[list[Step], list[RequestRow]]:
        """The steps since the last look, and the requests that have changed since."""
        steps, ended = _taken(self.recorder.steps), _taken(self.recorder.ended)
        self.steps.extend(steps)
        self._ended.extend(ended)
        while self.steps and self.steps[0].ended < now - KEPT_SECONDS:
            self.steps.popleft()
        while self._ended and self._ended[0].ended < now - KEPT_SECONDS:
            self._ended.popleft()
        current = {one.id: one for one in self.recorder.requests()}
        changed = [one for one in current.values() if self._seen.get(one.id) != one]
        self._seen = current
        return steps, [*ended, *changed]

    def past(self) -> list[RequestRow]:
        """The requests of the last minute, as they were at the last look."""
        return [*self._ended, *self._seen.values()]

    def described(self) -> dict[str, Any]:
        """The sizes of the model that a viewer needs."""
        engine = self.engine
        memory = engine.model.executor.memory
        return {
            "name": self.name,
            "slots": engine.config.slots,
            "context": engine.context,
            "batch_tokens": engine.config.batch_tokens,
            "page_tokens": PAGE_TOKENS,
            "pages": memory.pages,
            "page_bytes": memory.token_page_bytes,
            "device": engine.config.device,
            "since": self.recorder.since,
        }

    def state(self, now: float, *, admin: bool) -> dict[str, Any]:
        """The event `state`: the figures of this moment."""
        engine = self.engine
        shown = engine.snapshot()
        cache = shown.prefix_cache
        waiting = Counter(one.client for one in self._seen.values() if one.state == "waiting")
        held = engine.model.executor.held_bytes
        return {
            "model": self.name,
            "t": now,
            **_counts(shown),
            "queue": [
                [client_name(client, admin=admin), count]
                for client, count in waiting.most_common(_MOST_CLIENTS)
            ],
            "ttft_ms": _milliseconds(self.recorder.first_tokens.percentiles(now, _SHARES)),
            "itl_ms": _milliseconds(self.recorder.gaps.percentiles(now, _SHARES)),
            "memory": {
                "model_bytes": held - cache.capacity_bytes,
                "cache_bytes": cache.capacity_bytes,
                "disk_bytes": None if cache.disk is None else cache.disk.bytes,
            },
            "process_bytes": _resident_bytes(),
            "limits": self._limits(now),
        }

    def _limits(self, now: float) -> dict[str, float | None]:
        """What steps of the last seconds read and multiplied, and what the machine can."""
        work = self.engine.model.executor.work
        late = [one for one in self.steps if one.ended >= now - _RATE_SECONDS]
        pairs = [_work(one, work) for one in late]
        bytes = sum(pair[0] for pair in pairs)
        operations = sum(pair[1] for pair in pairs)
        limits = self.recorder.limits
        return {
            "bytes_per_second": bytes / _RATE_SECONDS,
            "operations_per_second": operations / _RATE_SECONDS,
            "peak_bytes_per_second": None if limits is None else limits.memory_rate,
            "peak_operations_per_second": None if limits is None else limits.multiply_rate,
        }


def steps_event(name: str, steps: Iterable[Step], lost: int) -> dict[str, Any]:
    """The event `steps`. `lost` is the number of steps that the viewer did not get."""
    shown = [
        [one.number, round(one.ended, 5), round(1e3 * one.seconds, 3), one.rows] for one in steps
    ]
    return {"model": name, "lost": lost, "steps": shown}


def requests_event(name: str, requests: Sequence[RequestRow], *, admin: bool) -> dict[str, Any]:
    """The event `requests`. Only admins see labels and names of clients."""
    return {"model": name, "requests": [_request(one, admin=admin) for one in requests]}


def client_name(client: Hashable | None, *, admin: bool) -> str:
    """The name of a client for a viewer. It stays the same as long as the server runs."""
    if client is None:
        return "unknown"
    if admin:
        return str(client)[:100]
    digest = hashlib.blake2b(str(client).encode("utf-8", "replace"), key=_SALT, digest_size=2)
    return f"client {digest.hexdigest()}"


def _request(one: RequestRow, *, admin: bool) -> dict[str, Any]:
    shown = one._asdict()
    for time in ("submitted", "started", "first_token", "ended"):
        shown[time] = round(shown[time], 5) or None
    shown["slot"] = one.slot if one.slot >= 0 else None
    shown["label"] = one.label[:100] if admin else ""
    shown["client"] = client_name(one.client, admin=admin)
    return shown


def _counts(now: EngineSnapshot) -> dict[str, Any]:
    cache, activity = now.prefix_cache, now.activity
    return {
        "running": now.running,
        "waiting": now.queue_depth,
        "waiting_tokens": now.waiting_tokens,
        "tokens_per_second": round(activity.tokens_per_second, 2),
        "prompt_tokens_per_second": round(activity.prompt_tokens_per_second, 2),
        "utilisation": round(activity.utilisation, 4),
        "pages_used": now.pages_used,
        "pages_total": now.pages_total,
        "cached_bytes": cache.cached_bytes,
        "capacity_bytes": cache.capacity_bytes,
        "hits": cache.hits,
        "misses": cache.misses,
        "hit_tokens": cache.hit_tokens,
        "query_tokens": cache.query_tokens,
        "evictions": cache.evictions,
        "preemptions": now.preemptions,
        "drafted_tokens": now.drafted_tokens,
        "accepted_tokens": now.accepted_tokens,
    }


def _work(step: Step, work: ModelWork) -> tuple[int, int]:
    """The bytes that a step read, and its multiply-adds."""
    tokens = sum(row.tokens for row in step.rows)
    decodes = sum(row.tokens for row in step.rows if row.decode)
    kept = sum(work.kv_bytes(row.start) for row in step.rows)
    multiply_adds = tokens * work.token_multiply_adds + decodes * work.row_multiply_adds
    return work.read_bytes(tokens) + kept, multiply_adds


def _milliseconds(seconds: tuple[float, ...] | None) -> dict[str, float] | None:
    if seconds is None:
        return None
    names = (f"p{100 * share:g}" for share in _SHARES)
    return {name: round(1e3 * one, 2) for name, one in zip(names, seconds, strict=True)}


def _resident_bytes() -> int | None:
    """The memory of this process; None if the system does not report it."""
    if not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def _taken(queue: deque[Any]) -> list[Any]:
    """All elements of a queue that another thread appends to. Removes them."""
    return [queue.popleft() for _ in range(len(queue))]
