"""Resources that a server holds while it is idle: slots, pages, tasks, files, memory."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from heddle.errors import PeerError
from heddle.extensions.bench.process import open_files, resident_bytes
from heddle.extensions.bench.remote import ask

if TYPE_CHECKING:
    from heddle.extensions.bench.exchange import Server

_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.1
_METRICS = {
    "slots": "heddle_slots_busy",
    "queued": "heddle_queue_depth",
    "pages": "heddle_kv_pages_used",
    "tasks": "heddle_server_tasks",
    "backlog_bytes": "heddle_backlog_bytes",
}


@dataclass(frozen=True, slots=True)
class Vitals:
    """The resources that a server holds. None: unknown.

    Attributes:
        slots: slots with a running request.
        queued: requests that wait for a slot.
        pages: KV pages that requests hold.
        tasks: tasks of the server's event loop.
        backlog_bytes: bytes of unread answers.
        files: open file descriptors, connections included.
        resident: bytes of resident memory.
    """

    slots: float | None = None
    queued: float | None = None
    pages: float | None = None
    tasks: float | None = None
    backlog_bytes: float | None = None
    files: float | None = None
    resident: float | None = None

    def leaks(self, before: Vitals) -> dict[str, float]:
        """The amounts held in addition to `before`, by name. Memory is not counted."""
        now, then = asdict(self), asdict(before)
        return {
            name: now[name] - then[name]
            for name in (field.name for field in fields(self) if field.name != "resident")
            if now[name] is not None and then[name] is not None and now[name] > then[name]
        }

    def as_texts(self) -> dict[str, str]:
        """The vitals as a table shows them, by their headings."""
        texts = {
            name: "unknown" if number is None else f"{number:,.0f}"
            for name, number in asdict(self).items()
            if name != "resident"
        }
        memory = "unknown" if self.resident is None else f"{self.resident / 1e6:,.1f}"
        return texts | {"memory, MB": memory}


def read_vitals(server: Server) -> Vitals:
    """The vitals now: from Heddle's `/metrics`, and from the process if it is on this machine."""
    known, pid = _samples(server), server.pid
    return Vitals(
        **{field: known.get(name) for field, name in _METRICS.items()},
        files=None if pid is None else open_files(pid),
        resident=None if pid is None else resident_bytes(pid),
    )


def _samples(server: Server) -> dict[str, float]:
    """The sums of all samples of each name. There is a sample for each model."""
    from prometheus_client.parser import text_string_to_metric_families

    known: dict[str, float] = defaultdict(float)
    try:
        text = ask(server, "/metrics").decode(errors="replace")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                known[sample.name] += sample.value
    except (PeerError, ValueError):  # other servers may have no metrics, or another text there
        return {}
    return known


def settled_vitals(server: Server, before: Vitals) -> Vitals:
    """The vitals when nothing more than `before` is held, or after 30 s."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (now := read_vitals(server)).leaks(before) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return now
