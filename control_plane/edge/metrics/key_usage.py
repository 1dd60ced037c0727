"""What the requests of each name of keys have used."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from control_plane.edge.metrics.families import Series, counter, gauge
from control_plane.engine.stats import KeyUsage

#: Names beyond so many have no series of their own; no name has parentheses.
_MAX_NAMES, _OTHERS = 1000, "(others)"

_QUOTAS = ("tokens", "requests")

_COUNTERS = {
    "requests": "Requests that were taken in, resumes included, by name of the key.",
    "prompt_tokens": "Prompt tokens of requests that were taken in, without resumes, by name of the key.",
    "generation_tokens": "Generated tokens, by name of the key.",
}


class KeyUsageCounts:
    """Written on the engine's thread; series of a name begin with its first request."""

    def __init__(self) -> None:
        self._usage: dict[str, KeyUsage] = {}

    def observe(self, observed: Mapping[str, KeyUsage]) -> None:
        """Add up one pass."""
        for name, increment in observed.items():
            if name not in self._usage and len(self._usage) >= _MAX_NAMES:
                name = _OTHERS
            usage = self._usage.setdefault(name, KeyUsage())
            for field in (*_COUNTERS, "ended"):
                setattr(usage, field, getattr(usage, field) + getattr(increment, field))
            usage.refusals.update(increment.refusals)

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        usage = dict(self._usage)
        for field, documentation in _COUNTERS.items():
            values: Series = {(name,): float(getattr(one, field)) for name, one in usage.items()}
            yield counter(f"key_{field}", documentation, values, ["key"])
        live: Series = {(name,): float(max(0, one.requests - one.ended)) for name, one in usage.items()}
        yield gauge("key_requests_live", "Requests that run, wait or pause, by name of the key.", live, ["key"])
        refusals: Series = {(name, quota): float(one.refusals[quota]) for name, one in usage.items() for quota in _QUOTAS}
        yield counter("key_refusals", "Requests refused over a quota, by name of the key.", refusals, ["key", "quota"])
