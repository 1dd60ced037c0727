"""Counts what became of spans for a collector."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class ExportCollector(Collector):
    """The spans that were dropped. `num_dropped` is asked on the thread of a scrape."""

    def __init__(self, prefix: str, num_dropped: Callable[[], int]) -> None:
        self._prefix = prefix
        self._num_dropped = num_dropped

    def collect(self) -> Iterator[Metric]:
        documentation = "Spans for OpenTelemetry that were too many to wait, or that the collector did not take."
        yield CounterMetricFamily(f"{self._prefix}exported_spans_dropped", documentation, self._num_dropped())
