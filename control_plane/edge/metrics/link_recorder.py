"""Metrics of the links to the workers."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from control_plane.edge.metrics.families import SIZES, Histogram, counter, gauge, histogram

_GAUGES = {
    "link_in_session": "Whether a session with the worker is open.",
    "link_epoch": "Epoch of this control plane at the worker.",
    "link_silence_seconds": "Time since the last frame of the worker.",
}
_COUNTERS = {
    "link_steps": "Steps sent to the worker.",
    "link_sessions_resumed": "Times the stream broke and the session went on over a new one.",
    "link_digest_mismatches": "Times both sides disagreed on the state after a step, or a result was missing.",
    "link_resets": "Times the worker was told to discard everything.",
}
_LABELS = ("worker",)

_Series = dict[tuple[str, ...], float]


class LinkRecorder:
    """Implements the link's `LinkMetrics`; written on the engine's thread. A worker's series begin when it is first heard of."""

    def __init__(self) -> None:
        self._gauges: dict[str, _Series] = {name: {} for name in _GAUGES}
        self._counters: dict[str, _Series] = {name: {} for name in _COUNTERS}
        self._step_bytes = Histogram(SIZES)

    def worker_connected(self, address: str, epoch: int) -> None:
        for series in self._counters.values():
            series.setdefault((address,), 0)
        self._set(address, in_session=1, epoch=epoch)

    def worker_disconnected(self, address: str) -> None:
        self._set(address, in_session=0, epoch=self._gauges["link_epoch"].get((address,), 0))

    def worker_forgotten(self, address: str) -> None:
        for series in (*self._gauges.values(), *self._counters.values()):
            series.pop((address,), None)

    def worker_silence(self, address: str, seconds: float) -> None:
        self._gauges["link_silence_seconds"][(address,)] = seconds

    def step_sent(self, address: str, num_bytes: int) -> None:
        self._count("link_steps", address)
        self._step_bytes.observe(num_bytes)

    def session_resumed(self, address: str) -> None:
        self._count("link_sessions_resumed", address)

    def digest_mismatched(self, address: str) -> None:
        self._count("link_digest_mismatches", address)

    def worker_reset(self, address: str) -> None:
        self._count("link_resets", address)

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        for name, documentation in _GAUGES.items():
            yield gauge(name, documentation, dict(self._gauges[name]), _LABELS)
        for name, documentation in _COUNTERS.items():
            yield counter(name, documentation, dict(self._counters[name]), _LABELS)
        yield histogram("step_bytes", "Size of a step on the wire.", self._step_bytes)

    def _set(self, address: str, in_session: int, epoch: float) -> None:
        self._gauges["link_in_session"][(address,)] = in_session
        self._gauges["link_epoch"][(address,)] = epoch
        self._gauges["link_silence_seconds"][(address,)] = 0

    def _count(self, name: str, address: str) -> None:
        series = self._counters[name]
        series[(address,)] = series.get((address,), 0) + 1
