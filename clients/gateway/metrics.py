"""What the gateway counts, for /metrics."""

import time
from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

_PREFIX = "pypto_serving_gateway_"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class GatewayMetrics:
    """Written on the event loop alone, the public counts by whoever knows; a collector of prometheus_client."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[float] = Counter()
        self._sum_seconds = 0.0
        self.num_events = 0
        self.num_disconnects = 0
        self.num_live = 0

    def answered(self, route: str, status: int, began_at: float) -> None:
        """Count an answer; `began_at` by time.monotonic()."""
        seconds = time.monotonic() - began_at
        self._requests[route, str(status)] += 1
        self._sum_seconds += seconds
        self._seconds[next((bound for bound in _BOUNDS if seconds <= bound), float("inf"))] += 1

    def collect(self) -> Iterable[Metric]:
        """All families."""
        requests = CounterMetricFamily(_PREFIX + "requests", "Answers by route and status.", labels=["route", "status"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        yield HistogramMetricFamily(_PREFIX + "request_seconds", "From a request to the end of its answer.", *self._histogram())
        yield CounterMetricFamily(_PREFIX + "events", "Events of streams sent.", self.num_events)
        yield CounterMetricFamily(_PREFIX + "disconnects", "Requests whose client went away before the end.", self.num_disconnects)
        yield GaugeMetricFamily(_PREFIX + "live_requests", "Requests that are being answered.", self.num_live)

    def _histogram(self) -> tuple[list[tuple[str, float]], float]:
        running, buckets = 0, []
        for bound in (*_BOUNDS, float("inf")):
            running += self._seconds[bound]
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
        return buckets, self._sum_seconds
