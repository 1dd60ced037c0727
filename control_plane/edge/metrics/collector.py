"""Puts the metrics of a process together for a scrape."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control_plane.edge.metrics.counts import CallCounts, EngineCounts, LinkCounts
from control_plane.edge.metrics.families import Series, gauge
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.process.version import version

_PAGE_STATES = ("free", "fenced", "cached", "referenced")


class EngineCollector(Collector):
    """What belongs to workers. `snapshot` returns a snapshot of the engine, `num_held_back` the requests that wait for the first worker."""

    def __init__(
        self, engine: EngineCounts, link: LinkCounts, snapshot: Callable[[], EngineSnapshot], num_held_back: Callable[[], int]
    ) -> None:
        self._counts = (engine, link)
        self._snapshot = snapshot
        self._num_held_back = num_held_back

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield gauge("requests_running", "Sequences that hold a lane.", snapshot.num_running)
        waiting: Series = {
            ("capacity",): float(snapshot.num_waiting_for_capacity),
            ("worker",): float(snapshot.num_waiting_for_worker + self._num_held_back()),
        }
        yield gauge("requests_waiting", "Sequences that wait, by what they wait for.", waiting, ["reason"])
        yield gauge("requests_held", "Sequences that pause until their reader has caught up.", snapshot.num_held)
        yield gauge("waiting_tokens", "Known tokens of sequences that wait.", snapshot.num_waiting_tokens)
        yield gauge("workers", "Workers in session.", len(snapshot.workers))
        yield gauge("max_model_len_tokens", "Most tokens a request may have; 0 until the first worker came.", snapshot.max_model_len)
        yield gauge("engine_healthy", "0 after an unexpected error that no request could be blamed for.", float(snapshot.healthy))
        yield from _worker_families(snapshot)
        for counts in self._counts:
            yield from counts.families()


class FrontEndCollector(Collector):
    """What belongs to clients. `num_unwritten_bytes`: memory of output that is not written yet."""

    def __init__(self, calls: CallCounts, num_unwritten_bytes: Callable[[], int]) -> None:
        self._calls = calls
        self._num_unwritten_bytes = num_unwritten_bytes

    def collect(self) -> Iterator[Metric]:
        yield gauge("unwritten_bytes", "Memory of output that clients have not taken yet.", self._num_unwritten_bytes())
        yield from self._calls.families()


class BuildCollector(Collector):
    """What runs, and within which limits: fixed when the process starts."""

    def __init__(self, model: str, fingerprint: str, limits: Mapping[str, float]) -> None:
        """`model`: how requests call it; `limits` by the names of their flags."""
        self._build = {"version": version(), "model": model, "model_fingerprint": fingerprint}
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "What runs; always 1.", {tuple(self._build.values()): 1.0}, tuple(self._build))
        if self._limits:
            limits: Series = {(name,): limit for name, limit in self._limits.items()}
            yield gauge("limits", "What bounds queue and steps, by the name of its flag.", limits, ["limit"])


def _worker_families(snapshot: EngineSnapshot) -> Iterator[Metric]:
    pages: Series = {(worker.address, state): float(getattr(worker.pages, state)) for worker in snapshot.workers for state in _PAGE_STATES}
    totals = {worker.address: sum(pages[(worker.address, state)] for state in _PAGE_STATES) for worker in snapshot.workers}
    ratios: Series = {(address, state): count / (totals[address] or 1.0) for (address, state), count in pages.items()}
    yield gauge("pages", "KV pages by state; fenced ones are freed and not yet acknowledged.", pages, ["worker", "state"])
    yield gauge("pages_ratio", "Share of the KV pages by state.", ratios, ["worker", "state"])
    in_flight: Series = {(worker.address,): float(worker.steps_in_flight) for worker in snapshot.workers}
    yield gauge("steps_in_flight", "Steps sent and not yet answered.", in_flight, ["worker"])
    running: Series = {(worker.address,): float(worker.num_running) for worker in snapshot.workers}
    yield gauge("worker_requests_running", "Sequences that hold a lane of the worker.", running, ["worker"])
