"""Prometheus metrics: counters and gauges of a table, and histograms of latencies.

Every metric gets the labels of its source, so that several engines can share an exposition:
`Metrics` is made with the names of the labels, and each source with their values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from heddle.server.api.native.metric_table import (
    DISK_ROWS,
    PREFIX_CACHE_ROWS,
    ROWS,
    Kind,
    Moment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from heddle.engine import Engine
    from heddle.engine.backlog import Backlog
    from heddle.server.api.native.metric_table import Row, Value
    from heddle.types import FinishReason, Usage

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Source:
    """An engine whose metrics are exported, and its values of the labels."""

    engine: Engine
    backlog: Backlog
    labels: tuple[str, ...] = ()


class Metrics:
    """All metrics of some engines, in a separate registry."""

    def __init__(self, sources: Sequence[Source], labels: Sequence[str] = ()) -> None:
        """`labels` are the names of the labels of each metric; a source has their values."""
        self._registry = CollectorRegistry()
        histograms = {
            key: Histogram(name, text, labels, buckets=buckets, registry=self._registry)
            for key, (name, text, buckets) in HISTOGRAMS.items()
        }
        self._tasks = Gauge(
            "heddle_server_tasks", "Tasks of the server's event loop.", registry=self._registry
        )
        self._registry.register(SnapshotCollector(sources, tuple(labels)))
        for source in sources:
            own = {
                key: one.labels(*source.labels) if labels else one
                for key, one in histograms.items()
            }
            source.engine.observe(Latencies(own["queue"], own["first_token"], own["gap"]))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format. Call it in the server's event loop."""
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self._registry)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The histograms of one engine. An engine `Observer`."""

    queue: Histogram
    first_token: Histogram
    gap: Histogram

    def on_submit(self) -> None:
        """Do nothing: no latency is known yet."""

    def on_start(self, queue_seconds: float) -> None:
        self.queue.observe(queue_seconds)

    def on_first_token(self, seconds: float) -> None:
        self.first_token.observe(seconds)

    def on_token(self, seconds: float) -> None:
        self.gap.observe(seconds)

    def on_finish(self, reason: FinishReason, usage: Usage) -> None:
        """Do nothing: the engine counts finished requests, and its snapshot has the totals."""


class SnapshotCollector(Collector):
    """Collects all values of an engine from one snapshot, so that they are consistent."""

    def __init__(self, sources: Sequence[Source], labels: tuple[str, ...]) -> None:
        self._sources = sources
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        moments = [
            (one.labels, Moment(one.engine, one.backlog, one.engine.snapshot()))
            for one in self._sources
        ]
        for row in ROWS:
            yield self._family(row, [(labels, row.value(moment)) for labels, moment in moments])
        stats = [(labels, moment.now.prefix_cache) for labels, moment in moments]
        for cache_row in PREFIX_CACHE_ROWS:
            values = [(labels, cache_row.value(one)) for labels, one in stats]
            yield self._family(cache_row, values)
        disks = [(labels, one.disk) for labels, one in stats if one.disk is not None]
        for disk_row in DISK_ROWS if disks else ():
            yield self._family(disk_row, [(labels, disk_row.value(one)) for labels, one in disks])

    def _family(self, row: Row[T], values: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
        """The metric of a row, with a sample for each source, or for each value of its label."""
        names = [*self._labels, row.label] if row.label else self._labels
        made = CounterMetricFamily if row.kind is Kind.TOTAL else GaugeMetricFamily
        family = made(row.name, row.text, labels=names)
        for labels, value in values:
            if isinstance(value, Mapping):
                for key, amount in value.items():
                    family.add_metric([*labels, key], amount)
            else:
                family.add_metric(labels, value)
        return family
