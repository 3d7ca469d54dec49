"""Logs one line at the start and one at the end of every request.

The fields of a line are in `record.fields`, for formats such as JSON. Requests that only read (GET,
HEAD, OPTIONS) log at level DEBUG unless they fail, because health checks and scrapes come often.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.server.http.record import RequestRecord

STARTS = "heddle.requests.start"
"""Name of the logger of the first lines."""
ENDS = "heddle.requests.end"
"""Name of the logger of the last lines."""

starts, _ends = logging.getLogger(STARTS), logging.getLogger(ENDS)
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_CHARACTERS = 500
"""Most characters of a path or an error in a line, because clients choose them."""


def log_start(record: RequestRecord) -> None:
    """Log the first line of a request."""
    level = logging.DEBUG if record.method in _READING else logging.INFO
    if not starts.isEnabledFor(level):
        return
    fields = {
        "event": "request_start",
        "request_id": record.request_id,
        "method": record.method,
        "path": _bounded(record.path),
        "client": record.address,
    }
    line = f"{record.request_id} {record.method} {_escaped(record.path)} from {record.address}"
    starts.log(level, "%s", line, extra={"fields": fields})


def log_end(record: RequestRecord) -> None:
    """Log the last line of a request."""
    failed = record.status >= 400 or record.error is not None
    level = logging.DEBUG if record.method in _READING and not failed else logging.INFO
    if _ends.isEnabledFor(level):
        fields = end_fields(record)
        _ends.log(level, "%s", _end_line(record, fields), extra={"fields": fields})


def end_fields(record: RequestRecord) -> dict[str, Any]:
    """The fields of a request's last line. Times are in seconds; of several choices, the longest.

    A field without a value is left out: `queue`, `prefill` and `decode` without a choice in the
    engine, `key` without a named key, `error` without an error.
    """
    fields: dict[str, Any] = {
        "event": "request_end",
        "request_id": record.request_id,
        "method": record.method,
        "path": _bounded(record.path),
        "client": record.address,
        "key": record.key and record.key.name,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "model": record.model,
        "error": record.error and _bounded(record.error),
        "error_code": record.error_code,
    }
    if record.usages:
        fields |= {
            "stream": record.stream,
            "finish_reason": "+".join(dict.fromkeys(one.value for one in record.finishes)),
            "choices": len(record.usages),
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            **{phase: round(seconds, 6) for phase, seconds in record.phases.items()},
        }
    return {name: value for name, value in fields.items() if value is not None}


def _end_line(record: RequestRecord, fields: dict[str, Any]) -> str:
    """A line for people."""
    parts = [f"{record.request_id} {record.method} {_escaped(record.path)}: {record.status}"]
    if (name := fields.get("key")) is not None:
        parts.append(f"key {_escaped(name)}")
    if record.model is not None:
        parts.append(_escaped(record.model))
    if record.usages:
        parts.append(fields["finish_reason"])
        parts.append(f"{fields['prompt_tokens']} prompt tokens ({fields['cached_tokens']} cached)")
        parts.append(f"{fields['completion_tokens']} completion tokens")
        parts += [f"{phase} {fields[phase]:.2f} s" for phase in ("queue", "prefill", "decode")]
    parts.append(f"{record.seconds:.2f} s")
    if record.error is not None:
        parts.append(_escaped(record.error))
    return ", ".join(parts)


def _bounded(text: str) -> str:
    return text[:_MOST_CHARACTERS]


def _escaped(text: str) -> str:
    """Text from a client in one line of bounded length."""
    return _bounded(text).encode("unicode_escape").decode()[:_MOST_CHARACTERS]
