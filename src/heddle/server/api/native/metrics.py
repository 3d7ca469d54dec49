"""Prometheus metrics: counters and gauges from snapshots of the engine, histograms of latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from heddle.engine import Engine
    from heddle.engine.backlog import Backlog
    from heddle.engine.telemetry import DiskStats, PrefixCacheStats
    from heddle.types import FinishReason, Usage

FIRST_TOKEN_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
GAP_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """All metrics of one engine, in a separate registry. An engine `Observer`."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._registry = CollectorRegistry()
        self._first_token = Histogram(
            "heddle_time_to_first_token_seconds",
            "Time from submission to the first token.",
            buckets=FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._gap = Histogram(
            "heddle_inter_token_seconds",
            "Time between two tokens of a request.",
            buckets=GAP_SECONDS,
            registry=self._registry,
        )
        self._registry.register(SnapshotCollector(engine, backlog))
        engine.observe(self)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def on_submit(self) -> None:
        """Do nothing: no latency is known yet."""

    def on_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def on_token(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def on_finish(self, reason: FinishReason, usage: Usage) -> None:
        """Do nothing: the engine counts finished requests, and its snapshot has the totals."""


class SnapshotCollector(Collector):
    """Collects all values from one snapshot of the engine, so that they are consistent."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._engine = engine
        self._backlog = backlog

    def collect(self) -> Iterator[Metric]:
        now = self._engine.snapshot()
        requests = CounterMetricFamily(
            "heddle_requests", "Requests that ended, by finish reason.", labels=["finish_reason"]
        )
        for reason, count in now.finished.items():
            requests.add_metric([reason.value], count)
        yield requests
        for name, text, total in (
            ("heddle_prompt_tokens", "Prompt tokens of requests that began.", now.prompt_tokens),
            (
                "heddle_prompt_tokens_computed",
                "Prompt tokens that steps computed.",
                now.computed_prompt_tokens,
            ),
            ("heddle_generated_tokens", "Generated tokens.", now.generated_tokens),
            ("heddle_preemptions", "Preemptions of sequences.", now.preemptions),
            ("heddle_backlog_cut", "Answers cut to limit the backlog.", self._backlog.cut),
            ("heddle_steps", "Computed steps.", now.steps),
            ("heddle_step_seconds", "Wall time of steps, with overhead.", now.step_seconds),
            ("heddle_compute_seconds", "Wall time of computation in steps.", now.compute_seconds),
        ):
            yield CounterMetricFamily(name, text, value=total)
        for name, text, level in (
            ("heddle_slots", "Slots.", len(now.slots)),
            ("heddle_slots_busy", "Slots with a running request.", now.running),
            ("heddle_queue_depth", "Requests that wait for a slot.", now.queue_depth),
            ("heddle_backlog_bytes", "Bytes of unread answers.", self._backlog.held),
            ("heddle_kv_pages", "Pages of the KV cache.", now.pages_total),
            ("heddle_kv_pages_used", "Pages of the KV cache that requests hold.", now.pages_used),
        ):
            yield GaugeMetricFamily(name, text, value=level)
        yield self._kv_bytes()
        yield from prefix_cache_metrics(now.prefix_cache)

    def _kv_bytes(self) -> Metric:
        executor = self._engine.model.executor
        size = GaugeMetricFamily(
            "heddle_kv_bytes",
            "Bytes of all pages and snapshots of the KV cache, by storage type.",
            labels=["type"],
        )
        size.add_metric([self._engine.config.kv_type], executor.memory.bytes)
        return size


def prefix_cache_metrics(stats: PrefixCacheStats) -> Iterator[Metric]:
    """Metrics of the prefix cache, under their names in `GET /v1/prefix_cache_stats`."""
    yield from _families(
        "heddle_prefix_cache",
        totals=(
            ("hits", "Requests with a prefix hit.", stats.hits),
            ("misses", "Requests without a prefix hit.", stats.misses),
            ("evictions", "Evicted nodes.", stats.evictions),
            ("query_tokens", "Prompt tokens that were looked up.", stats.query_tokens),
            ("hit_tokens", "Prompt tokens that were found.", stats.hit_tokens),
        ),
        levels=(
            ("enabled", "1 if the prefix cache is on, else 0.", stats.enabled),
            ("hit_rate", "Share of requests with a prefix hit.", stats.hit_rate),
            ("avg_hit_tokens", "Mean tokens of a prefix hit.", stats.mean_hit_tokens),
            ("len", "Nodes of the tree.", stats.nodes),
            ("cached_tokens", "Tokens in the tree.", stats.cached_tokens),
            ("cached_bytes", "Bytes of the pages that the tree keeps.", stats.cached_bytes),
            ("capacity_bytes", "Bytes of all pages.", stats.capacity_bytes),
        ),
    )
    if stats.disk is not None:
        yield from disk_metrics(stats.disk)


def disk_metrics(stats: DiskStats) -> Iterator[Metric]:
    """Metrics of the disk tier, under their names in `GET /v1/prefix_cache_stats`."""
    yield from _families(
        "heddle_prefix_cache_disk",
        totals=(
            ("hits", "Restores of at least one page.", stats.hits),
            ("restored_tokens", "Tokens restored from files.", stats.restored_tokens),
            ("writes", "Written pages.", stats.writes),
            ("dropped", "Pages not written because the disk was too slow.", stats.dropped),
            ("errors", "Invalid files, and failed writes.", stats.errors),
        ),
        levels=(
            ("enabled", "1 if the disk tier saves and restores pages, else 0.", stats.enabled),
            ("files", "Page files in the directory.", stats.files),
            ("bytes", "Bytes of page files.", stats.bytes),
            ("capacity_bytes", "Most bytes of page files.", stats.capacity_bytes),
        ),
    )


Rows = tuple[tuple[str, str, float], ...]  # name, text, value


def _families(prefix: str, totals: Rows, levels: Rows) -> Iterator[Metric]:
    for name, text, total in totals:
        yield CounterMetricFamily(f"{prefix}_{name}", text, value=total)
    for name, text, level in levels:
        yield GaugeMetricFamily(f"{prefix}_{name}", text, value=level)
