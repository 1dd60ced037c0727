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
        self._num_late_refusals = 0
        self._num_paced_writes = 0

    def observe_call(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended."""
        key = (method, code.name.lower())
        self._calls[key] = self._calls.get(key, 0) + 1

    def observe_loop_lag(self, seconds: float) -> None:
        """Take how late the clients' event loop ran a timer."""
        self._loop_lag.observe(seconds)

    def observe_late_refusal(self) -> None:
        """Count a call that was refused because the event loop ran late."""
        self._num_late_refusals += 1

    def observe_paced_write(self) -> None:
        """Count a pause of a stream because the event loop ran late."""
        self._num_paced_writes += 1

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        yield counter("calls", "Calls of clients that ended, by method and status.", dict(self._calls), ["method", "code"])
        yield counter("late_refusals", "Calls refused because the clients' event loop ran late.", self._num_late_refusals)
        yield counter("paced_writes", "Pauses of streams because the clients' event loop ran late.", self._num_paced_writes)
        yield histogram("client_loop_lag_seconds", "How late the clients' event loop runs.", self._loop_lag)
