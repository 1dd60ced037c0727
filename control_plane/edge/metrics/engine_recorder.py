"""Metrics of the engine loop: requests, tokens, latencies, steps."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from control_plane.edge.metrics.families import SECONDS, SHORT_SECONDS, SIZES, Histogram, counter, histogram
from control_plane.engine.ports import Failure, FinishReason
from control_plane.engine.stats import PassObservation

_COUNTS = {
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
_HISTOGRAMS = {
    "queue_seconds": ("queue_seconds", "From arrival to the first scheduled step of a request.", SECONDS),
    "first_token_seconds": ("time_to_first_token_seconds", "From arrival to the first token of a request (TTFT).", SECONDS),
    "output_token_seconds": ("time_per_output_token_seconds", "Time per token after the first, per choice (TPOT).", SHORT_SECONDS),
    "total_seconds": ("request_seconds", "From arrival to the end of a choice.", SECONDS),
    "step_seconds": ("step_seconds", "From sending a step to taking its result in.", SHORT_SECONDS),
    "step_tokens": ("step_tokens", "Tokens run by a step.", SIZES),
    "device_seconds": ("device_seconds", "Time the device worked on a step.", SHORT_SECONDS),
    "device_idle_seconds": (
        "device_idle_seconds",
        "Time the device was idle although there was work: before each step that went on with earlier work.",
        SHORT_SECONDS,
    ),
}


class EngineRecorder:
    """Implements the engine's `EngineMetrics`; written on the engine's thread."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._outcomes: dict[tuple[str, ...], float] = {(outcome.value,): 0 for kind in (FinishReason, Failure) for outcome in kind}
        self._histograms = {field: Histogram(bounds) for field, (_, _, bounds) in _HISTOGRAMS.items()}
        self._inter_token = Histogram(SHORT_SECONDS)
        self._loop_lag = Histogram(SHORT_SECONDS)

    def observe(self, observed: PassObservation) -> None:
        for field in _COUNTS:
            increment = getattr(observed, field)
            assert increment >= 0, f"{field} falls by {-increment}"
            self._counts[field] += increment
        for outcome in (*observed.finished, *observed.failed):
            self._outcomes[(outcome.value,)] += 1
        for field, values in self._histograms.items():
            values.observe_all(getattr(observed, field))
        for gap, count in observed.inter_token_seconds.items():
            self._inter_token.observe(gap, count)
        self._loop_lag.observe(observed.loop_lag_seconds)

    def families(self) -> Iterator[Metric]:
        """Everything, for a scrape."""
        for field, documentation in _COUNTS.items():
            yield counter(field, documentation, self._counts[field])
        yield counter(
            "requests_finished", "Requests that ended, by outcome; length if one of several choices ended so.", self._outcomes, ["reason"]
        )
        for field, (name, documentation, _) in _HISTOGRAMS.items():
            yield histogram(name, documentation, self._histograms[field])
        yield histogram("inter_token_seconds", "Gap between two tokens of a choice (ITL).", self._inter_token)
        yield histogram("engine_loop_lag_seconds", "From the event that woke the engine to the start of its pass.", self._loop_lag)
