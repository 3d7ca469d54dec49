"""The table of all metrics: a row is a metric's name, kind, text and value, and all that it needs.

Counters get the suffix `_total` in the exposition. A value is a number, or numbers by the value of
the row's own label. `exposition.py` adds the labels that all metrics share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from heddle.engine import Engine
    from heddle.engine.observation.telemetry import DiskStats, EngineSnapshot, PrefixCacheStats
    from heddle.engine.streaming.streams import Backlog
    from heddle.hosting.status import ModelStatus

T = TypeVar("T")
Value: TypeAlias = "float | Mapping[str, float]"


class MetricKind(Enum):
    """Kind of a metric: a TOTAL only grows, a LEVEL goes up and down."""

    TOTAL = "counter"
    LEVEL = "gauge"


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """One metric.

    Attributes:
        name: its name, without the suffix `_total`.
        kind: counter or gauge.
        text: its help line.
        value: reads its value.
        label: its own label, if `value` returns numbers by the values of this label.
    """

    name: str
    kind: MetricKind
    text: str
    value: Callable[[T], Value]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """The figures of one engine at one moment. The rows read from here."""

    engine: Engine
    now: EngineSnapshot


E = TypeVar("E", bound=Enum)


def _by_value(amounts: Mapping[E, float]) -> Mapping[str, float]:
    return {key.value: amount for key, amount in amounts.items()}


def _kv_bytes(moment: Moment) -> Mapping[str, float]:
    return {moment.engine.config.kv_type: moment.engine.model.executor.memory.bytes}


def _adapter_bytes(moment: Moment) -> float:
    return sum(one.bytes for one in set(moment.engine.adapters.sizes.values()))


def _step_tokens(moment: Moment) -> Mapping[str, float]:
    activity = moment.now.activity
    return {"prompt": activity.prompt_tokens, "decode": activity.decodes}


def _slot_rates(moment: Moment) -> Mapping[str, float]:
    return {str(slot.index): slot.tokens_per_second for slot in moment.now.slots}


def _device_memory(moment: Moment) -> Mapping[str, float]:
    memory = moment.engine.model.executor.device_memory
    return {} if memory is None else asdict(memory)


_TOTAL, _LEVEL = MetricKind.TOTAL, MetricKind.LEVEL

ROWS: tuple[Row[Moment], ...] = (
    Row(
        "heddle_requests",
        _TOTAL,
        "Requests that ended, by finish reason.",
        lambda at: _by_value(at.now.finished),
        "finish_reason",
    ),
    Row(
        "heddle_prompt_tokens",
        _TOTAL,
        "Prompt tokens of requests that began.",
        lambda at: at.now.prompt_tokens,
    ),
    Row(
        "heddle_prompt_tokens_computed",
        _TOTAL,
        "Prompt tokens that steps computed.",
        lambda at: at.now.computed_prompt_tokens,
    ),
    Row("heddle_generated_tokens", _TOTAL, "Generated tokens.", lambda at: at.now.generated_tokens),
    Row("heddle_preemptions", _TOTAL, "Preemptions of sequences.", lambda at: at.now.preemptions),
    Row(
        "heddle_drafted_tokens",
        _TOTAL,
        "Guesses of tokens that steps computed.",
        lambda at: at.now.drafted_tokens,
    ),
    Row(
        "heddle_accepted_tokens",
        _TOTAL,
        "Guesses that were right.",
        lambda at: at.now.accepted_tokens,
    ),
    Row(
        "heddle_steps",
        _TOTAL,
        "Computed steps, by what they compute.",
        lambda at: _by_value(at.now.activity.steps),
        "kind",
    ),
    Row(
        "heddle_step_tokens",
        _TOTAL,
        "Tokens that steps computed: of prompts, and decodes.",
        _step_tokens,
        "kind",
    ),
    Row(
        "heddle_step_sequences",
        _TOTAL,
        "Sequences of all steps, added up.",
        lambda at: at.now.activity.sequences,
    ),
    Row(
        "heddle_step_seconds",
        _TOTAL,
        "Wall time of steps, with overhead.",
        lambda at: at.now.step_seconds,
    ),
    Row(
        "heddle_compute_seconds",
        _TOTAL,
        "Wall time of computation in steps.",
        lambda at: at.now.compute_seconds,
    ),
    Row(
        "heddle_slow_steps",
        _TOTAL,
        "Steps that took longer than 2 s.",
        lambda at: at.now.activity.slow_steps,
    ),
    Row(
        "heddle_slow_waits",
        _TOTAL,
        "Requests that computed nothing for 2 s, by reason.",
        lambda at: _by_value(at.now.activity.slow_waits),
        "reason",
    ),
    Row(
        "heddle_utilisation",
        _LEVEL,
        "Share of wall time in steps over the last 5 s, from 0 to 1.",
        lambda at: at.now.activity.utilisation,
    ),
    Row(
        "heddle_tokens_per_second",
        _LEVEL,
        "Generated tokens per second over the last 5 s, of all slots.",
        lambda at: at.now.activity.tokens_per_second,
    ),
    Row(
        "heddle_prompt_tokens_per_second",
        _LEVEL,
        "Computed prompt tokens per second over the last 5 s.",
        lambda at: at.now.activity.prompt_tokens_per_second,
    ),
    Row(
        "heddle_slot_tokens_per_second",
        _LEVEL,
        "Generated tokens per second over the last 5 s, of each slot.",
        _slot_rates,
        "slot",
    ),
    Row("heddle_slots", _LEVEL, "Slots.", lambda at: len(at.now.slots)),
    Row("heddle_slots_busy", _LEVEL, "Slots with a running request.", lambda at: at.now.running),
    Row(
        "heddle_queue_depth",
        _LEVEL,
        "Requests that wait for a slot.",
        lambda at: at.now.queue_depth,
    ),
    Row(
        "heddle_waiting_tokens",
        _LEVEL,
        "Tokens that requests without a slot need, prompts and usual outputs.",
        lambda at: at.now.waiting_tokens,
    ),
    Row(
        "heddle_busy_tokens_per_second",
        _LEVEL,
        "Prompt and output tokens per second of recent steps, without idle time.",
        lambda at: at.now.busy_rate,
    ),
    Row(
        "heddle_adapters",
        _LEVEL,
        "Adapters that requests may name, of all models.",
        lambda at: len(at.engine.adapters.library.names),
    ),
    Row(
        "heddle_adapters_loaded",
        _LEVEL,
        "Names of adapters that are in memory.",
        lambda at: len(at.engine.adapters.sizes),
    ),
    Row("heddle_adapter_bytes", _LEVEL, "Bytes of the adapters in memory.", _adapter_bytes),
    Row("heddle_kv_pages", _LEVEL, "Pages of the KV cache.", lambda at: at.now.pages_total),
    Row(
        "heddle_kv_pages_used",
        _LEVEL,
        "Pages of the KV cache that requests hold.",
        lambda at: at.now.pages_used,
    ),
    Row(
        "heddle_kv_bytes",
        _LEVEL,
        "Bytes of all pages and snapshots of the KV cache, by storage type.",
        _kv_bytes,
        "type",
    ),
    Row(
        "heddle_device_memory_bytes",
        _LEVEL,
        "Bytes of the device's memory: free, and total.",
        _device_memory,
        "kind",
    ),
)
"""Metrics of an engine."""

BACKLOG_ROWS: tuple[Row[Backlog], ...] = (
    Row("heddle_backlog_cut", _TOTAL, "Answers cut to limit the backlog.", lambda at: at.cut),
    Row("heddle_backlog_bytes", _LEVEL, "Bytes of unread answers.", lambda at: at.held),
)
"""Metrics of the server, for all its models."""

MODEL_ROWS: tuple[Row[ModelStatus], ...] = (
    Row("heddle_model", _LEVEL, "1 for the state of a model.", lambda at: {at.state: 1}, "state"),
    Row(
        "heddle_model_bytes",
        _LEVEL,
        "Bytes of weights and KV cache of a model.",
        lambda at: at.memory_bytes,
    ),
)
"""Metrics of a model, loaded or not."""


def _cache(
    name: str, kind: MetricKind, text: str, value: Callable[[PrefixCacheStats], float]
) -> Row[PrefixCacheStats]:
    return Row(f"heddle_prefix_cache_{name}", kind, text, value)


PREFIX_CACHE_ROWS = (
    _cache("hits", _TOTAL, "Requests with a prefix hit.", lambda at: at.hits),
    _cache("misses", _TOTAL, "Requests without a prefix hit.", lambda at: at.misses),
    _cache("evictions", _TOTAL, "Evicted nodes.", lambda at: at.evictions),
    _cache(
        "query_tokens", _TOTAL, "Prompt tokens that were looked up.", lambda at: at.query_tokens
    ),
    _cache("hit_tokens", _TOTAL, "Prompt tokens that were found.", lambda at: at.hit_tokens),
    _cache(
        "lost_tokens",
        _TOTAL,
        "Prompt tokens that were found, but no state to continue from.",
        lambda at: at.lost_tokens,
    ),
    _cache("enabled", _LEVEL, "1 if the prefix cache is on, else 0.", lambda at: at.enabled),
    _cache("hit_rate", _LEVEL, "Share of requests with a prefix hit.", lambda at: at.hit_rate),
    _cache("avg_hit_tokens", _LEVEL, "Mean tokens of a prefix hit.", lambda at: at.mean_hit_tokens),
    _cache("len", _LEVEL, "Nodes of the tree.", lambda at: at.nodes),
    _cache("cached_tokens", _LEVEL, "Tokens in the tree.", lambda at: at.cached_tokens),
    _cache(
        "cached_bytes",
        _LEVEL,
        "Bytes of the pages that the tree keeps.",
        lambda at: at.cached_bytes,
    ),
    _cache("capacity_bytes", _LEVEL, "Bytes of all pages.", lambda at: at.capacity_bytes),
)
"""Metrics of the prefix cache, under their names in `GET /v1/prefix_cache_stats`."""


def _disk(
    name: str, kind: MetricKind, text: str, value: Callable[[DiskStats], float]
) -> Row[DiskStats]:
    return Row(f"heddle_prefix_cache_disk_{name}", kind, text, value)


DISK_ROWS = (
    _disk("hits", _TOTAL, "Restores of at least one page.", lambda at: at.hits),
    _disk("restored_tokens", _TOTAL, "Tokens restored from files.", lambda at: at.restored_tokens),
    _disk("writes", _TOTAL, "Written pages.", lambda at: at.writes),
    _disk(
        "dropped", _TOTAL, "Pages not written because the disk was too slow.", lambda at: at.dropped
    ),
    _disk("errors", _TOTAL, "Invalid files, and failed writes.", lambda at: at.errors),
    _disk(
        "enabled",
        _LEVEL,
        "1 if the disk tier saves and restores pages, else 0.",
        lambda at: at.enabled,
    ),
    _disk("files", _LEVEL, "Page files in the directory.", lambda at: at.files),
    _disk("bytes", _LEVEL, "Bytes of page files.", lambda at: at.bytes),
    _disk("capacity_bytes", _LEVEL, "Most bytes of page files.", lambda at: at.capacity_bytes),
)
"""Metrics of the disk tier, under their names in `GET /v1/prefix_cache_stats`."""

_WAIT_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_GAP_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)

HISTOGRAMS = {
    "queue": ("heddle_queue_seconds", "Time from submission to the first step.", _WAIT_SECONDS),
    "first_token": (
        "heddle_time_to_first_token_seconds",
        "Time from submission to the first token.",
        _WAIT_SECONDS,
    ),
    "gap": ("heddle_inter_token_seconds", "Time between two tokens of a request.", _GAP_SECONDS),
}
"""Name, text and buckets of each histogram."""

TASKS = ("heddle_server_tasks", "Tasks of the server's event loop.")
"""Name and text of the gauge that the server sets itself."""


def described() -> Iterator[tuple[str, str, str]]:
    """Name in the exposition, kind and text of every metric, for the documentation."""
    groups = (ROWS, BACKLOG_ROWS, MODEL_ROWS, PREFIX_CACHE_ROWS, DISK_ROWS)
    for row in (row for rows in groups for row in rows):
        name = f"{row.name}_total" if row.kind is MetricKind.TOTAL else row.name
        yield f"{name}{{{row.label}}}" if row.label else name, row.kind.value, row.text
    for name, text, _ in HISTOGRAMS.values():
        yield name, "histogram", text
    yield TASKS[0], MetricKind.LEVEL.value, TASKS[1]
