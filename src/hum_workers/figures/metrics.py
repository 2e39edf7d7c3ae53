"""Metrics: a bee's figures as Prometheus reads them, under hum's names where hum has one.

A custom collector: it keeps nothing, a scrape reads what the bee is and has counted at that
moment. Importing this module imports prometheus_client (20 ms), so only a bee whose egg says
`[metrics] listen` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from hum_workers.figures.counts import BeeView, Histogram
from hum_workers.figures.families import FAMILIES, Family


class Collector:
    """Reads `view` at each scrape."""

    def __init__(self, view: Callable[[], BeeView]) -> None:
        self._view = view

    def describe(self) -> Iterator[Metric]:
        """Yields every metric without values: what registering needs to know."""
        for family in FAMILIES:
            yield _metric(family)

    def collect(self) -> Iterator[Metric]:
        """Yields every metric as of now."""
        bee = self._view()
        for family in FAMILIES:
            metric = _metric(family)
            for labels, value in family.rows(bee):
                if isinstance(value, Histogram):
                    assert isinstance(metric, HistogramMetricFamily)
                    metric.add_metric(labels, buckets(value), value.sum)
                else:
                    assert isinstance(metric, GaugeMetricFamily | CounterMetricFamily)
                    metric.add_metric(labels, value)
            yield metric


def _metric(family: Family) -> Metric:
    if family.kind == "gauge":
        return GaugeMetricFamily(family.name, family.help, labels=family.labels)
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.help, labels=family.labels)
    return HistogramMetricFamily(family.name, family.help, labels=family.labels)


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Returns the cumulative buckets as the text format wants them."""
    total = 0
    made = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        made.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return made


def page(view: Callable[[], BeeView]) -> Callable[[], bytes]:
    """Returns what makes the text of one scrape."""
    registry = CollectorRegistry()
    registry.register(Collector(view))
    return lambda: generate_latest(registry)
