"""Building blocks of metrics: a histogram that takes many equal values at once, and families with our prefix."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PREFIX = "pypto_serving_"

#: From a millisecond to forty minutes.
SECONDS = tuple(float(f"{step}e{exponent}") for exponent in range(-3, 4) for step in (1, 2.5, 5))[:-1]
#: From ten microseconds to eight minutes.
SHORT_SECONDS = tuple(float(f"{step}e{exponent}") for exponent in range(-5, 3) for step in (1, 2.5, 5))
_FINE = tuple(float(f"{step}e{exponent}") for exponent in range(-4, 4) for step in (1, 1.5, 2, 3, 5, 7))
#: What people promise each other needs finer steps: first tokens from a millisecond to half an hour, gaps from half of one to ten minutes.
FIRST_TOKEN_SECONDS = tuple(bound for bound in _FINE if 1e-3 <= bound <= 2e3)
TOKEN_SECONDS = tuple(bound for bound in _FINE if 5e-4 <= bound <= 7e2)
#: From 16 to 16 million.
SIZES = tuple(float(2**exponent) for exponent in range(4, 25))
#: From 1 to a million tokens of one request.
LENGTHS = tuple(float(2**exponent) for exponent in range(21))

#: Values by label values.
Series = Mapping[tuple[str, ...], float]


class Histogram:
    """Counts values by bucket. Written on one thread; `family` may be called on any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `count` equal values."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def observe_all(self, values: Iterable[float]) -> None:
        """Count values."""
        for value in values:
            self.observe(value)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        running, buckets = 0, []
        for bound, count in zip((*self._bounds, inf), list(self._counts), strict=True):
            running += count
            buckets.append((str(bound) if bound < inf else "+Inf", float(running)))
        return buckets

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum


def histogram(name: str, documentation: str, values: Histogram) -> Metric:
    """A family of one histogram."""
    family = HistogramMetricFamily(PREFIX + name, documentation)
    family.add_metric([], values.buckets(), values.sum)
    return family


def counter(name: str, documentation: str, values: Series | float, labels: Sequence[str] = ()) -> Metric:
    """A family of counters by label values, or of one counter; the exposition appends _total."""
    family = CounterMetricFamily(PREFIX + name, documentation, labels=labels)
    for label_values, value in _by_labels(values):
        family.add_metric(label_values, value)
    return family


def gauge(name: str, documentation: str, values: Series | float, labels: Sequence[str] = ()) -> Metric:
    """A family of gauges by label values, or of one gauge."""
    family = GaugeMetricFamily(PREFIX + name, documentation, labels=labels)
    for label_values, value in _by_labels(values):
        family.add_metric(label_values, value)
    return family


def _by_labels(values: Series | float) -> Iterable[tuple[Sequence[str], float]]:
    return list(values.items()) if isinstance(values, Mapping) else [((), values)]
