"""What a worker tells Prometheus. A scrape reads integers of the event loop's state and never touches the device."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pypto_serving.process.version import version
from worker.progress import ProgressCounter
from worker.service.session import Session, SessionState

_PREFIX = "pypto_serving_worker"
_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_IDLE_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class WorkerMetrics:
    """Metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._step_seconds = Histogram(
            f"{_PREFIX}_step_device_seconds", "Time that the device worked on a step.", registry=self.registry, buckets=_STEP_SECONDS
        )
        self._idle_seconds = Histogram(
            f"{_PREFIX}_device_idle_gap_seconds",
            "Time that the device waited for a step while lanes were live.",
            registry=self.registry,
            buckets=_IDLE_SECONDS,
        )
        steps = Counter(f"{_PREFIX}_steps", "Steps answered.", ("outcome",), registry=self.registry)
        self._steps = {outcome: steps.labels(outcome) for outcome in ("ok", "error")}
        self._tokens = Counter(f"{_PREFIX}_sampled_tokens", "Tokens sampled.", registry=self.registry)
        self._lane_errors = Counter(f"{_PREFIX}_lane_errors", "Lanes that could not go on.", registry=self.registry)
        self._stale_frames = Counter(f"{_PREFIX}_stale_frames", "Frames dropped, as they were of another epoch.", registry=self.registry)
        self._broken_frames = Counter(f"{_PREFIX}_broken_frames", "Frames that broke the contract.", registry=self.registry)
        self._name = Gauge(
            f"{_PREFIX}_info", "By which address the control plane in session calls this worker; 1.", ("worker",), registry=self.registry
        )
        self._lease_expirations = Counter(f"{_PREFIX}_lease_expirations", "Owners that fell silent.", registry=self.registry)

    def describe(self, labels: Mapping[str, str], load_seconds: float, kv_cache_bytes: int, pages: Mapping[str, int]) -> None:
        """Set what is fixed once the model is loaded. `labels`: of the build; `pages`: number of pages by cache group."""
        build = {"version": version(), **labels}
        Gauge(f"{_PREFIX}_build_info", "What runs; always 1.", tuple(build), registry=self.registry).labels(**build).set(1)
        self._gauge("model_load_seconds", "Time that loading and warming up took.").set(load_seconds)
        self._gauge("kv_cache_bytes", "Memory of the KV cache.").set(kv_cache_bytes)
        pages_total = Gauge(f"{_PREFIX}_pages", "Pages of the KV cache that a control plane may use.", ("group",), registry=self.registry)
        for group, count in pages.items():
            pages_total.labels(group).set(count)

    def watch_progress(self, progress: ProgressCounter) -> None:
        """Expose a progress counter."""
        self._gauge("progress", "Units of work (layers, tensors loaded) done since the start.").set_function(lambda: progress.count)
        slowest = self._gauge("slowest_unit_seconds", "Longest time between two units of work.")
        slowest.set_function(lambda: progress.slowest_unit_us / 1e6)

    def watch_session(self, session: Session[Any]) -> None:
        """Expose a session."""
        self._gauge("lanes", "Live lanes.").set_function(lambda: session.num_lanes)
        self._gauge("steps_in_flight", "Steps taken in and not yet answered.").set_function(lambda: session.num_steps_in_flight)
        self._gauge("epoch", "Control planes that have owned this worker so far.").set_function(lambda: session.epoch)
        states = Gauge(f"{_PREFIX}_session_state", "1 for the state that the session is in.", ("state",), registry=self.registry)
        for state in SessionState:
            states.labels(state.value).set_function(partial(_is_in, session, state))

    def set_name(self, worker: str) -> None:
        """Show what the owner calls this worker, so that its series can be joined with ours; empty: it does not say."""
        self._name.clear()
        if worker:
            self._name.labels(worker).set(1)

    def count_step(self, device_us: int, idle_us: int | None, num_tokens: int, num_lane_errors: int) -> None:
        """Count a step that was executed; `idle_us` is None when nothing waited for the device."""
        self._steps["ok"].inc()
        self._tokens.inc(num_tokens)
        self._lane_errors.inc(num_lane_errors)
        self._step_seconds.observe(device_us / 1e6)
        if idle_us is not None:
            self._idle_seconds.observe(idle_us / 1e6)

    def count_failed_step(self) -> None:
        """Count a step that was answered with an error."""
        self._steps["error"].inc()

    def count_stale_frame(self) -> None:
        """Count a frame of another epoch."""
        self._stale_frames.inc()

    def count_broken_frame(self) -> None:
        """Count a frame that ended its stream."""
        self._broken_frames.inc()

    def count_lease_expiration(self) -> None:
        """Count an owner that fell silent."""
        self._lease_expirations.inc()

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", documentation, registry=self.registry)


def _is_in(session: Session[Any], state: SessionState) -> float:
    return float(session.state is state)
