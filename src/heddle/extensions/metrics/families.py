"""Families of metrics, as Prometheus' client writes them, from rows of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from heddle.extensions.metrics.table import MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.core import Metric

    from heddle.extensions.metrics.table import Row, Value

T = TypeVar("T")


def totals(rows: Iterable[Row[T]], source: T) -> dict[str, Value]:
    """The counters of `source` by name."""
    return {row.name: row.value(source) for row in rows if row.kind is MetricKind.TOTAL}


def family(
    row: Row[T], labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], Value]]
) -> Metric:
    """The metric of a row, with a sample for each source, or for each value of its own label."""
    names = [*labels, row.label] if row.label else labels
    made = CounterMetricFamily if row.kind is MetricKind.TOTAL else GaugeMetricFamily
    made_of = made(row.name, row.text, labels=names)
    for own, value in values:
        if isinstance(value, Mapping):
            for key, amount in value.items():
                made_of.add_metric([*own, key], amount)
        else:
            made_of.add_metric(own, value)
    return made_of
