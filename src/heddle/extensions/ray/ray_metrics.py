"""Metrics of a replica as metrics of Ray: at each node's endpoint, and in Ray's dashboards.

Ray adds the labels of the deployment, the replica and the application. Gauges are gauges. Counters
are counters, and so are the buckets, sums and counts of histograms: Ray's histograms take single
values, which an exposition does not have.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Protocol

from prometheus_client.parser import text_string_to_metric_families
from starlette.exceptions import HTTPException

from heddle.errors import HeddleError
from heddle.extensions.ray.exposition import exposition_of

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.samples import Sample
    from starlette.applications import Starlette

_log = logging.getLogger(__name__)

_EVERY = 5.0
"""Seconds between two exports. Ray's nodes collect metrics as often."""

_RESERVED = frozenset({"deployment", "replica", "application", "route"})
"""Labels that Ray sets itself."""


class RayGauge(Protocol):
    """A gauge of Ray."""

    def set(self, value: float, tags: dict[str, str]) -> None: ...


class RayCounter(Protocol):
    """A counter of Ray."""

    def inc(self, value: float, tags: dict[str, str]) -> None: ...


class Makers(Protocol):
    """Makes metrics from a name, a text and the names of labels: `ray.serve.metrics`."""

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> RayGauge: ...  # noqa: N802

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> RayCounter: ...  # noqa: N802


class RayMetrics:
    """The metrics of one replica in Ray."""

    def __init__(self, makers: Makers) -> None:
        self._makers = makers
        self._gauges: dict[str, RayGauge] = {}
        self._counters: dict[str, RayCounter] = {}
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}

    async def export_forever(self, app: Starlette) -> None:
        """Export the metrics of a server every few seconds, unless it has no metrics."""
        while True:
            try:
                self.export(await exposition_of(app))
            except (HeddleError, HTTPException) as error:
                _log.info("Ray gets no metrics of this replica: %s", error)
                return
            except Exception:  # metrics must not end the replica
                _log.exception("the metrics of this replica could not be exported")
            await asyncio.sleep(_EVERY)

    def export(self, exposition: str) -> None:
        """Export all values of an exposition in Prometheus' text format."""
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                is_a_time = sample.name.endswith("_created")  # Prometheus' client adds these
                if is_a_time or math.isnan(sample.value) or _RESERVED & sample.labels.keys():
                    continue
                if family.type in ("counter", "histogram"):
                    self._count(family, sample)
                else:
                    self._set(family, sample)

    def _set(self, family: Metric, sample: Sample) -> None:
        name = ray_name(sample.name)
        if name not in self._gauges:
            self._gauges[name] = self._makers.Gauge(
                name, family.documentation, tuple(sample.labels)
            )
        self._gauges[name].set(sample.value, sample.labels)

    def _count(self, family: Metric, sample: Sample) -> None:
        """Add what a counter has grown by. One that has begun anew has grown by its value."""
        name = ray_name(sample.name.removesuffix("_total"))
        if name not in self._counters:
            self._counters[name] = self._makers.Counter(
                name, family.documentation, tuple(sample.labels)
            )
        key = (name, tuple(sample.labels.values()))
        last = self._last.get(key, 0.0)
        grown = sample.value - last if sample.value >= last else sample.value
        self._last[key] = sample.value
        if grown > 0.0:
            self._counters[name].inc(grown, sample.labels)


def ray_name(name: str) -> str:
    """A name for Ray, which adds the prefix `ray_`, and takes no colons."""
    return name.replace(":", "_")
