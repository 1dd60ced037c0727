"""Metrics of the calls of clients."""

from collections.abc import Iterable, Iterator

import grpc
from prometheus_client.core import Metric

from control_plane.edge.metrics.families import SHORT_SECONDS, Histogram, counter, histogram


class CallRecorder:
    """Counts calls by method and status; written on the clients' event loop."""

    def __init__(self, methods: Iterable[str]) -> None:
        self._calls: dict[tuple[str, ...], float] = {(method, code.name.lower()): 0 for method in methods for code in grpc.StatusCode}
        self._loop_lag = Histogram(SHORT_SECONDS)

    def observe_call(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended."""
        key = (method, code.name.lower())
        self._calls[key] = self._calls.get(key, 0) + 1

    def observe_loop_lag(self, seconds: float) -> None:
        """Take how late the clients' event loop ran a timer."""
        self._loop_lag.observe(seconds)

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        yield counter("calls", "Calls of clients that ended, by method and status.", dict(self._calls), ["method", "code"])
        yield histogram("client_loop_lag_seconds", "How late the clients' event loop runs.", self._loop_lag)
