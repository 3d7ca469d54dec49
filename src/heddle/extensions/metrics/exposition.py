"""Prometheus metrics: counters and gauges of a table, and histograms of latencies.

Every metric of an engine has the label `model`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from heddle.doors import extensions, refer
from heddle.engine.observation.telemetry import Observer
from heddle.extensions.metrics.families import family, totals
from heddle.extensions.metrics.past_counters import PastCounters, added
from heddle.extensions.metrics.settings import MetricsSettings
from heddle.extensions.metrics.table import (
    BACKLOG_ROWS,
    DISK_ROWS,
    HISTOGRAMS,
    MODEL_ROWS,
    PREFIX_CACHE_ROWS,
    ROWS,
    TASKS,
    Moment,
)
from heddle.extensions.metrics.vllm_names import VllmCollector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.engine.streaming.streams import Backlog
    from heddle.extensions.metrics.table import Row, Value
    from heddle.hosting.registry import Registry

T = TypeVar("T")

LABEL = "model"
"""The label of all metrics of an engine."""


class Metrics:
    """All metrics of a registry's models and of their server, in a separate registry."""

    def __init__(self, models: Registry, backlog: Backlog, config: ServerConfig) -> None:
        """Extensions may export metrics of their own."""
        self._registry = CollectorRegistry()
        self._histograms = {
            key: Histogram(name, text, (LABEL,), buckets=buckets, registry=self._registry)
            for key, (name, text, buckets) in HISTOGRAMS.items()
        }
        self._tasks = Gauge(*TASKS, registry=self._registry)
        self._registry.register(SnapshotCollector(models, backlog))
        if config.of(MetricsSettings).metric_names == "vllm":
            self._registry.register(VllmCollector(models, self._histograms))
        for collector in _collectors(models, config):
            self._registry.register(collector)
        models.on_loaded(self._observe)

    def _observe(self, model: str, engine: Engine) -> None:
        own = {key: one.labels(model) for key, one in self._histograms.items()}
        engine.thread.observe(Latencies(own["queue"], own["first_token"], own["gap"]))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format. Call it in the server's event loop."""
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self._registry)


@dataclass(frozen=True, slots=True)
class Latencies(Observer):
    """The histograms of one engine."""

    queue: Histogram
    first_token: Histogram
    gap: Histogram

    def on_start(self, queue_seconds: float) -> None:
        self.queue.observe(queue_seconds)

    def on_first_token(self, seconds: float) -> None:
        self.first_token.observe(seconds)

    def on_token(self, seconds: float) -> None:
        self.gap.observe(seconds)


class SnapshotCollector(Collector):
    """Collects all values of an engine from one snapshot, so that they are consistent."""

    def __init__(self, models: Registry, backlog: Backlog) -> None:
        self._models = models
        self._backlog = backlog
        self._past = PastCounters(models, _counters)

    def collect(self) -> Iterator[Metric]:
        engines, past = self._past.split()
        moments = {name: Moment(engine, engine.snapshot()) for name, engine in engines.items()}
        yield from _of_models(ROWS, moments, past)
        caches = {name: moment.now.prefix_cache for name, moment in moments.items()}
        yield from _of_models(PREFIX_CACHE_ROWS, caches, past)
        disks = {name: one.disk for name, one in caches.items() if one.disk is not None}
        if disks or any(row.name in sums for sums in past.values() for row in DISK_ROWS):
            yield from _of_models(DISK_ROWS, disks, past)
        yield from _of_models(MODEL_ROWS, {one.name: one for one in self._models.status()}, {})
        for row in BACKLOG_ROWS:
            yield family(row, (), [((), row.value(self._backlog))])


def _collectors(models: Registry, config: ServerConfig) -> Iterator[Collector]:
    """The collectors of extensions."""
    for extension in extensions().values():
        for reference in extension.collectors:
            if (collector := refer(reference)(models, config)) is not None:
                yield collector


def _counters(_model: str, engine: Engine) -> dict[str, Value]:
    """The counters of an engine by name."""
    moment = Moment(engine, engine.snapshot())
    cache = moment.now.prefix_cache
    found = totals(ROWS, moment) | totals(PREFIX_CACHE_ROWS, cache)
    return found if cache.disk is None else found | totals(DISK_ROWS, cache.disk)


def _of_models(
    rows: Iterable[Row[T]], sources: Mapping[str, T], past: Mapping[str, Mapping[str, Value]]
) -> Iterator[Metric]:
    """The metric of each row, with a sample for each model. `past` is part of counters."""
    for row in rows:
        samples = {name: sums[row.name] for name, sums in past.items() if row.name in sums}
        for name, source in sources.items():
            samples[name] = added(row.value(source), samples.get(name))
        yield family(row, (LABEL,), [((name,), value) for name, value in samples.items()])
