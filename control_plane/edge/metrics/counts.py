"""What counts calls, the engine and the links for /metrics. Each of them is written by one thread; a scrape copies."""

from collections.abc import Iterable, Iterator

import grpc
from prometheus_client.core import Metric

from control_plane.edge.metrics.families import (
    FIRST_TOKEN_SECONDS,
    LENGTHS,
    SECONDS,
    SHORT_SECONDS,
    SIZES,
    TOKEN_SECONDS,
    Histogram,
    counter,
    gauge,
    histogram,
)
from control_plane.edge.metrics.key_usage import KeyUsageCounts
from control_plane.engine.ports import Failure, FinishReason
from control_plane.engine.stats import PassObservation

_ENGINE_COUNTS = {
    "requests_received": "Requests that the engine was given, resumes included.",
    "prompt_tokens": "Prompt tokens of requests admitted for the first time.",
    "generation_tokens": "Generated tokens.",
    "prefix_query_tokens": "Prompt tokens looked up in the prefix cache.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache.",
    "preemptions": "Sequences that gave their pages back to others.",
    "readmissions": "Sequences admitted again, for whatever reason.",
    "worker_losses": "Sequences whose worker was lost or reset.",
    "replays_exhausted": "Sequences given up after they had lost too many workers.",
    "numerics_changes": "Sequences continued under another numerics id.",
}

#: Field of an observation: name of the metric, what it says, bounds.
_ENGINE_HISTOGRAMS = {
    "queue_seconds": ("queue_seconds", "From arrival to the first scheduled step of a request.", SECONDS),
    "first_token_seconds": ("time_to_first_token_seconds", "From arrival to the first token of a request (TTFT).", FIRST_TOKEN_SECONDS),
    "output_token_seconds": ("time_per_output_token_seconds", "Time per token after the first, per choice (TPOT).", TOKEN_SECONDS),
    "total_seconds": ("request_seconds", "From arrival to the end of a choice.", SECONDS),
    "prefill_seconds": ("prefill_seconds", "From the first scheduled step of a request to its first token.", FIRST_TOKEN_SECONDS),
    "decode_seconds": ("decode_seconds", "From the first token of a choice to its end.", SECONDS),
    "request_prompt_tokens": ("request_prompt_tokens", "Length of the prompt of a request.", LENGTHS),
    "request_generation_tokens": ("request_generation_tokens", "Length of the output of a choice, resumed tokens included.", LENGTHS),
    "step_seconds": ("step_seconds", "From sending a step to taking its result in.", SHORT_SECONDS),
    "step_tokens": ("step_tokens", "Tokens run by a step.", SIZES),
    "device_seconds": ("device_seconds", "Time the device worked on a step.", SHORT_SECONDS),
    "device_idle_seconds": (
        "device_idle_seconds",
        "Time the device was idle although there was work: before each step that went on with earlier work.",
        SHORT_SECONDS,
    ),
}

_LINK_GAUGES = {
    "link_in_session": "Whether a session with the worker is open.",
    "link_epoch": "Epoch of this control plane at the worker.",
    "link_silence_seconds": "Time since the last frame of the worker.",
}
_LINK_COUNTERS = {
    "link_steps": "Steps sent to the worker.",
    "link_sessions_resumed": "Times the stream broke and the session went on over a new one.",
    "link_digest_mismatches": "Times both sides disagreed on the state after a step, or a result was missing.",
    "link_resets": "Times the worker was told to discard everything.",
}
_LINK_LABELS = ("worker",)

_Series = dict[tuple[str, ...], float]


#: Statuses whose series are there from the start, as alerts look at them: Prometheus sees no increase where a series begins.
_EXPECTED_CODES = (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED)


class CallCounts:
    """Counts calls by method and status; written on the clients' event loop."""

    def __init__(self, methods: Iterable[str]) -> None:
        self._calls: dict[tuple[str, ...], float] = {(method, code.name.lower()): 0 for method in methods for code in _EXPECTED_CODES}
        self._loop_lag = Histogram(SHORT_SECONDS)
        self._delta_window_seconds = 0.0
        self._num_late_refusals = 0

    def observe_call(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended."""
        key = (method, code.name.lower())
        self._calls[key] = self._calls.get(key, 0) + 1

    def observe_loop_lag(self, seconds: float) -> None:
        """Observe how late the clients' event loop ran a timer."""
        self._loop_lag.observe(seconds)

    def observe_delta_window(self, seconds: float) -> None:
        """Note for how long streams gather output now."""
        self._delta_window_seconds = seconds

    def observe_late_refusal(self) -> None:
        """Count a call that was refused because the event loop ran late."""
        self._num_late_refusals += 1

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        yield counter("calls", "Calls of clients that ended, by method and status.", dict(self._calls), ["method", "code"])
        yield counter("late_refusals", "Calls refused because the clients' event loop ran late.", self._num_late_refusals)
        yield gauge("delta_window_seconds", "For how long streams gather tokens for one message now.", self._delta_window_seconds)
        yield histogram("client_loop_lag_seconds", "How late the clients' event loop runs.", self._loop_lag)


class EngineCounts:
    """Implements the engine's `EngineMetrics`; written on the engine's thread."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_ENGINE_COUNTS, 0)
        self._outcomes: dict[tuple[str, ...], float] = {(outcome.value,): 0 for kind in (FinishReason, Failure) for outcome in kind}
        self._histograms = {field: Histogram(bounds) for field, (_, _, bounds) in _ENGINE_HISTOGRAMS.items()}
        self._inter_token = Histogram(TOKEN_SECONDS)
        self._key_usage = KeyUsageCounts()
        self._loop_lag = Histogram(SHORT_SECONDS)

    def observe(self, observed: PassObservation) -> None:
        for field in _ENGINE_COUNTS:
            increment = getattr(observed, field)
            assert increment >= 0, f"{field} falls by {-increment}"
            self._counts[field] += increment
        for outcome in (*observed.finished, *observed.failed):
            self._outcomes[(outcome.value,)] += 1
        for field, values in self._histograms.items():
            values.observe_all(getattr(observed, field))
        for gap, count in observed.inter_token_seconds.items():
            self._inter_token.observe(gap, count)
        self._key_usage.observe(observed.usage)
        self._loop_lag.observe(observed.loop_lag_seconds)

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        for field, documentation in _ENGINE_COUNTS.items():
            yield counter(field, documentation, self._counts[field])
        yield counter(
            "requests_finished", "Requests that ended, by outcome; length if one of several choices ended so.", self._outcomes, ["reason"]
        )
        for field, (name, documentation, _) in _ENGINE_HISTOGRAMS.items():
            yield histogram(name, documentation, self._histograms[field])
        yield histogram("inter_token_seconds", "Gap between two tokens of a choice (ITL).", self._inter_token)
        yield from self._key_usage.families()
        yield histogram("engine_loop_lag_seconds", "From the event that woke the engine to the start of its pass.", self._loop_lag)


class LinkCounts:
    """Implements the link's `LinkMetrics`; written on the engine's thread. A worker's series begin when it is first heard of."""

    def __init__(self) -> None:
        self._gauges: dict[str, _Series] = {name: {} for name in _LINK_GAUGES}
        self._counters: dict[str, _Series] = {name: {} for name in _LINK_COUNTERS}
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
        for name, documentation in _LINK_GAUGES.items():
            yield gauge(name, documentation, dict(self._gauges[name]), _LINK_LABELS)
        for name, documentation in _LINK_COUNTERS.items():
            yield counter(name, documentation, dict(self._counters[name]), _LINK_LABELS)
        yield histogram("step_bytes", "Size of a step on the wire.", self._step_bytes)

    def _set(self, address: str, in_session: int, epoch: float) -> None:
        self._gauges["link_in_session"][(address,)] = in_session
        self._gauges["link_epoch"][(address,)] = epoch
        self._gauges["link_silence_seconds"][(address,)] = 0

    def _count(self, name: str, address: str) -> None:
        series = self._counters[name]
        series[(address,)] = series.get((address,), 0) + 1
