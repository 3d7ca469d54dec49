"""The metrics of vLLM's server under its names and labels (`--metric-names vllm`).

Endpoint pickers of Kubernetes read them: those of the Gateway API Inference Extension and of llm-d
take running and waiting requests, the usage of the KV cache, adapters, and the size of a block and
the number of blocks. Autoscalers and dashboards read the rest. Names and meanings are those of
vllm/v1/metrics/loggers.py (https://github.com/vllm-project/vllm).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from heddle.extensions.metrics.families import family, totals
from heddle.extensions.metrics.past_counters import PastCounters, added
from heddle.extensions.metrics.table import HISTOGRAMS as HEDDLE_HISTOGRAMS
from heddle.extensions.metrics.table import MetricKind, Moment, Row
from heddle.outputs import FinishReason
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Histogram

    from heddle.engine import Engine
    from heddle.extensions.metrics.table import Value
    from heddle.hosting.registry import Registry

LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM numbers the copies of a model in one server. Heddle's has one."""

_TOTAL, _LEVEL = MetricKind.TOTAL, MetricKind.LEVEL


_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}


def _finished(moment: Moment) -> Mapping[str, float]:
    return {_REASONS[reason]: count for reason, count in moment.now.finished.items()}


def _usage(moment: Moment) -> float:
    return moment.now.pages_used / max(1, moment.now.pages_total)


ROWS: tuple[Row[Moment], ...] = (
    Row(
        "vllm:num_requests_running",
        _LEVEL,
        "Slots with a running request.",
        lambda at: at.now.running,
    ),
    Row(
        "vllm:num_requests_waiting",
        _LEVEL,
        "Requests that wait for a slot.",
        lambda at: at.now.queue_depth,
    ),
    Row(
        "vllm:kv_cache_usage_perc",
        _LEVEL,
        "Share of the KV cache that requests hold, from 0 to 1.",
        _usage,
    ),
    Row(
        "vllm:gpu_cache_usage_perc",
        _LEVEL,
        "The same under its name before vLLM 0.10.",
        _usage,
    ),
    Row(
        "vllm:prefix_cache_queries",
        _TOTAL,
        "Prompt tokens that were looked up.",
        lambda at: at.now.prefix_cache.query_tokens,
    ),
    Row(
        "vllm:prefix_cache_hits",
        _TOTAL,
        "Prompt tokens that were found.",
        lambda at: at.now.prefix_cache.hit_tokens,
    ),
    Row(
        "vllm:prompt_tokens",
        _TOTAL,
        "Prompt tokens of requests that began.",
        lambda at: at.now.prompt_tokens,
    ),
    Row(
        "vllm:generation_tokens",
        _TOTAL,
        "Generated tokens.",
        lambda at: at.now.generated_tokens,
    ),
    Row(
        "vllm:num_preemptions",
        _TOTAL,
        "Preemptions of sequences.",
        lambda at: at.now.preemptions,
    ),
    Row(
        "vllm:request_success",
        _TOTAL,
        "Requests that ended, by finish reason: stop, length, abort or error.",
        _finished,
        "finished_reason",
    ),
)
"""Metrics with a value for each model."""

LORA = (
    "vllm:lora_requests_info",
    "Adapters of running and waiting requests; not shown. The value is the time.",
)
CACHE = ("vllm:cache_config_info", "Block size and number of blocks of the KV cache. Always 1.")
HISTOGRAMS = {
    "queue": "vllm:request_queue_time_seconds",
    "first_token": "vllm:time_to_first_token_seconds",
    "gap": "vllm:inter_token_latency_seconds",
}
"""vLLM's names of Heddle's histograms, which keep their buckets."""


def described() -> Iterator[tuple[str, str, str]]:
    """Name in the exposition, kind and text of every metric, for the documentation."""
    for row in ROWS:
        name = f"{row.name}_total" if row.kind is MetricKind.TOTAL else row.name
        yield f"{name}{{{row.label}}}" if row.label else name, row.kind.value, row.text
    for name, text in (LORA, CACHE):
        yield name, MetricKind.LEVEL.value, text
    for key, name in HISTOGRAMS.items():
        yield name, "histogram", f"`{HEDDLE_HISTOGRAMS[key][0]}` under vLLM's name."


class VllmCollector(Collector):
    """Collects the metrics of all models, the default model's first.

    A picker that knows no models takes the first sample of each metric.
    """

    def __init__(self, models: Registry, histograms: Mapping[str, Histogram]) -> None:
        self._models = models
        self._histograms = histograms
        self._past = PastCounters(models, _counters)

    def collect(self) -> Iterator[Metric]:
        engines, past = self._past.split()
        default = self._models.default
        names = sorted({**engines, **past}, key=lambda name: name != default)
        moments = {
            name: Moment(engines[name], engines[name].snapshot())
            for name in names
            if name in engines
        }
        for row in ROWS:
            samples: list[tuple[tuple[str, ...], Value]] = []
            for name in names:
                before = past.get(name, {}).get(row.name)
                if name in moments:
                    samples.append(((name, _ENGINE), added(row.value(moments[name]), before)))
                elif before is not None:
                    samples.append(((name, _ENGINE), before))
            yield family(row, LABELS, samples)
        yield _lora(moments)
        yield _cache(moments)
        for key, name in HISTOGRAMS.items():
            yield from _renamed(self._histograms[key], name)


def _counters(_model: str, engine: Engine) -> dict[str, Value]:
    """The counters of an engine by name."""
    return totals(ROWS, Moment(engine, engine.snapshot()))


def _lora(moments: Mapping[str, Moment]) -> Metric:
    own = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    metric = GaugeMetricFamily(*LORA, labels=(*LABELS, *own))
    for name in moments:
        metric.add_metric((name, _ENGINE, "0", "", ""), time.time())
    return metric


def _cache(moments: Mapping[str, Moment]) -> Metric:
    own = ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
    metric = GaugeMetricFamily(*CACHE, labels=(*LABELS, *own))
    for name, moment in moments.items():
        sizes = (str(PAGE_TOKENS), str(moment.now.pages_total), moment.engine.config.kv_type)
        shares = str(moment.now.prefix_cache.enabled)
        metric.add_metric((name, _ENGINE, *sizes, shares), 1)
    return metric


def _renamed(histogram: Histogram, name: str) -> Iterator[Metric]:
    """A histogram under another name, with vLLM's labels."""
    for one in histogram.collect():
        metric = Metric(name, one.documentation, one.type)
        for sample in one.samples:
            labels = dict(sample.labels)
            labels = {"model_name": labels.pop("model"), "engine": _ENGINE, **labels}
            metric.add_sample(name + sample.name.removeprefix(one.name), labels, sample.value)
        yield metric
