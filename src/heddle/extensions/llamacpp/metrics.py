"""The metrics of llama.cpp's server under its names, without labels, of the default model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from heddle.engine.observation.telemetry import Observer
from heddle.extensions.metrics.past_counters import PastCounters, added
from heddle.extensions.metrics.settings import MetricsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.engine.requests.request import Request
    from heddle.extensions.metrics.table import Value
    from heddle.hosting.registry import Registry


@dataclass(slots=True)
class Phases(Observer):
    """Sums over the requests of one engine that have ended.

    Attributes:
        prompt_seconds: time of prefill.
        predicted_seconds: time of decode.
        cached_tokens: prompt tokens of the prefix cache.
        most_tokens: most tokens of a request, prompt and output.
    """

    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    cached_tokens: int = 0
    most_tokens: int = 0

    def on_finish(self, request: Request) -> None:
        usage = request.usage
        self.prompt_seconds += usage.prompt_seconds
        self.predicted_seconds += usage.completion_seconds
        self.cached_tokens += usage.cached_tokens
        self.most_tokens = max(self.most_tokens, usage.prompt_tokens + usage.completion_tokens)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The figures of one engine at one moment."""

    now: EngineSnapshot
    phases: Phases


_TOTALS: dict[str, tuple[str, Callable[[_Moment], float]]] = {
    "prompt_tokens": (
        "Prompt tokens that steps computed.",
        lambda at: at.now.computed_prompt_tokens,
    ),
    "prompt_tokens_cached": (
        "Prompt tokens of finished requests that the prefix cache held.",
        lambda at: at.phases.cached_tokens,
    ),
    "prompt_seconds": ("Time of prefill.", lambda at: at.phases.prompt_seconds),
    "tokens_predicted": ("Generated tokens.", lambda at: at.now.generated_tokens),
    "tokens_predicted_seconds": ("Time of decode.", lambda at: at.phases.predicted_seconds),
    "n_decode": ("Computed steps.", lambda at: at.now.steps),
    "spec_decode_num_draft_tokens": ("Draft tokens.", lambda at: at.now.drafted_tokens),
    "spec_decode_num_accepted_tokens": (
        "Draft tokens that were right.",
        lambda at: at.now.accepted_tokens,
    ),
}
_LEVELS: dict[str, tuple[str, Callable[[_Moment], float]]] = {
    "n_tokens_max": (
        "Most tokens of a request, prompt and output.",
        lambda at: at.phases.most_tokens,
    ),
    "n_busy_slots_per_decode": (
        "Mean sequences of a step.",
        lambda at: at.now.activity.sequences / max(1, at.now.steps),
    ),
    "prompt_tokens_seconds": (
        "Computed prompt tokens per second over the last 5 s.",
        lambda at: at.now.activity.prompt_tokens_per_second,
    ),
    "predicted_tokens_seconds": (
        "Generated tokens per second over the last 5 s.",
        lambda at: at.now.activity.tokens_per_second,
    ),
    "requests_processing": ("Slots with a running request.", lambda at: at.now.running),
    "requests_deferred": ("Requests that wait for a slot.", lambda at: at.now.queue_depth),
    "kv_cache_usage_ratio": (
        "Share of the KV cache that requests hold, from 0 to 1.",
        lambda at: at.now.pages_used / max(1, at.now.pages_total),
    ),
}
"""Help line and value of each metric, by its name without `llamacpp:`."""


class LlamaCppCollector(Collector):
    """Collects the metrics of the default model: its counters, and its gauges if it is loaded."""

    def __init__(self, models: Registry) -> None:
        self._models = models
        self._phases: dict[str, Phases] = {}
        self._past = PastCounters(models, self._counters)
        models.on_loaded(self._observe)

    def _observe(self, model: str, engine: Engine) -> None:
        self._phases[model] = phases = Phases()
        engine.thread.observe(phases)

    def _moment(self, model: str, engine: Engine) -> _Moment:
        return _Moment(engine.snapshot(), self._phases[model])

    def _counters(self, model: str, engine: Engine) -> dict[str, Value]:
        """The counters of an engine by name."""
        moment = self._moment(model, engine)
        return {metric: value(moment) for metric, (_, value) in _TOTALS.items()}

    def collect(self) -> Iterator[Metric]:
        name = self._models.default
        engines, past = self._past.split()
        moment = self._moment(name, engines[name]) if name in engines else None
        if moment is None and name not in past:
            return
        for metric, (text, value) in _TOTALS.items():
            now = 0.0 if moment is None else value(moment)
            total = added(now, past.get(name, {}).get(metric))
            assert not isinstance(total, Mapping), "these counters have no labels"
            yield CounterMetricFamily(f"llamacpp:{metric}", text, value=total)
        if moment is None:
            return
        for metric, (text, value) in _LEVELS.items():
            yield GaugeMetricFamily(f"llamacpp:{metric}", text, value=value(moment))


def collector(models: Registry, config: ServerConfig) -> LlamaCppCollector | None:
    """The collector, if the settings ask for llama.cpp's names."""
    names = config.of(MetricsSettings).metric_names
    return LlamaCppCollector(models) if names == "llamacpp" else None
