"""Prometheus metrics: totals and gauges from snapshots of the engine, latencies as they occur."""

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
    """All metrics of one engine, in a registry of their own. An engine `Observer`."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._registry = CollectorRegistry()
        self._first_token = Histogram(
            "heddle_time_to_first_token_seconds",
            "From submission to the first token.",
            buckets=FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._gap = Histogram(
            "heddle_inter_token_seconds",
            "From one token of a request to its next.",
            buckets=GAP_SECONDS,
            registry=self._registry,
        )
        self._registry.register(SnapshotCollector(engine, backlog))
        engine.observe(self)

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)

    def on_submit(self) -> None:
        """Nothing to time yet."""

    def on_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def on_token(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def on_finish(self, reason: FinishReason, usage: Usage) -> None:
        """The engine counts these itself; its snapshot has the totals."""


class SnapshotCollector(Collector):
    """Collects from one snapshot of the engine, so that the values of a scrape are consistent."""

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
                "Prompt tokens computed, not found in the prefix cache.",
                now.computed_prompt_tokens,
            ),
            ("heddle_generated_tokens", "Tokens generated.", now.generated_tokens),
            ("heddle_preemptions", "Times a request gave its slot back.", now.preemptions),
            ("heddle_backlog_cut", "Answers dropped to bound the backlog.", self._backlog.cut),
            ("heddle_steps", "Steps computed.", now.steps),
            ("heddle_step_seconds", "Wall time of steps, overhead included.", now.step_seconds),
            ("heddle_compute_seconds", "Wall time of their computation.", now.compute_seconds),
        ):
            yield CounterMetricFamily(name, text, value=total)
        for name, text, level in (
            ("heddle_slots", "Slots.", len(now.slots)),
            ("heddle_slots_busy", "Slots that hold a request.", now.running),
            ("heddle_queue_depth", "Requests waiting for a slot.", now.queue_depth),
            ("heddle_backlog_bytes", "Answers that wait to be read.", self._backlog.held),
            ("heddle_kv_pages", "KV cache pages.", now.pages_total),
            ("heddle_kv_pages_used", "KV cache pages that requests hold.", now.pages_used),
        ):
            yield GaugeMetricFamily(name, text, value=level)
        yield self._kv_bytes()
        yield from prefix_cache_metrics(now.prefix_cache)

    def _kv_bytes(self) -> Metric:
        executor = self._engine.model.executor
        size = GaugeMetricFamily(
            "heddle_kv_bytes",
            "Bytes of all KV cache pages and snapshots, by their type.",
            labels=["type"],
        )
        size.add_metric([self._engine.config.kv_type], executor.memory.bytes)
        return size


def prefix_cache_metrics(stats: PrefixCacheStats) -> Iterator[Metric]:
    """The counters of `GET /v1/prefix_cache_stats`, under the same names."""
    yield from _families(
        "heddle_prefix_cache",
        totals=(
            ("hits", "Requests that found tokens of their prompt.", stats.hits),
            ("misses", "Requests that found none.", stats.misses),
            ("evictions", "Runs of tokens that had to go.", stats.evictions),
            ("query_tokens", "Prompt tokens looked up.", stats.query_tokens),
            ("hit_tokens", "Prompt tokens found.", stats.hit_tokens),
        ),
        levels=(
            ("enabled", "Whether prefixes are found and kept.", stats.enabled),
            ("hit_rate", "Part of the requests that found tokens.", stats.hit_rate),
            ("avg_hit_tokens", "Tokens found by those that found any.", stats.mean_hit_tokens),
            ("len", "Runs of tokens that are kept.", stats.nodes),
            ("cached_tokens", "Tokens that are kept.", stats.cached_tokens),
            ("cached_bytes", "Bytes of the KV pages they lie in.", stats.cached_bytes),
            ("capacity_bytes", "Bytes of all KV pages.", stats.capacity_bytes),
        ),
    )
    if stats.disk is not None:
        yield from disk_metrics(stats.disk)


def disk_metrics(stats: DiskStats) -> Iterator[Metric]:
    """The counters of the disk tier, under their names in `GET /v1/prefix_cache_stats`."""
    yield from _families(
        "heddle_prefix_cache_disk",
        totals=(
            ("hits", "Restores that brought at least one page.", stats.hits),
            ("restored_tokens", "Tokens taken from files.", stats.restored_tokens),
            ("writes", "Pages written.", stats.writes),
            ("dropped", "Pages not written, for want of time.", stats.dropped),
            ("errors", "Files not as they should be, and failed writes.", stats.errors),
        ),
        levels=(
            ("enabled", "Whether pages are saved and restored.", stats.enabled),
            ("files", "Page files in the directory.", stats.files),
            ("bytes", "Their size.", stats.bytes),
            ("capacity_bytes", "What they may have together.", stats.capacity_bytes),
        ),
    )


Rows = tuple[tuple[str, str, float], ...]  # name, text, value


def _families(prefix: str, totals: Rows, levels: Rows) -> Iterator[Metric]:
    for name, text, total in totals:
        yield CounterMetricFamily(f"{prefix}_{name}", text, value=total)
    for name, text, level in levels:
        yield GaugeMetricFamily(f"{prefix}_{name}", text, value=level)
