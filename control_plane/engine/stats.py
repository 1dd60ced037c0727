"""The statistics of the engine: numbers only, exported by whoever implements EngineMetrics.

Observations leave the engine once per pass of its loop, in one call; a snapshot is replaced a few times a second and may be read on any
thread.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from dataclasses import replace as copy
from typing import Protocol

from control_plane.core.scheduler import Scheduler, SchedulerCounters
from control_plane.core.sequence import Sequence, SequenceUpdates
from control_plane.core.step import StepResult
from control_plane.engine.choice_batch import ChoiceBatch
from control_plane.engine.ports import Failure, FinishReason, SequenceFinished, Tenant
from control_plane.engine.request import LiveChoice
from control_plane.engine.snapshot import EngineSnapshot
from control_plane.engine.tracer import Tracers

_log = logging.getLogger(__name__)

#: Share of the newest value in the moving average of the time in the queue.
_QUEUE_SMOOTHING = 0.1

#: Bounds of the advice when to come back after a full queue, in seconds.
MIN_RETRY, MAX_RETRY = 0.1, 60.0

#: Counts of the scheduler that an observation has under the same name.
_COUNTERS = tuple(counter.name for counter in fields(SchedulerCounters))


#: Stands for all keys without a name; no name has parentheses.
UNNAMED = "(unnamed)"


@dataclass(slots=True)
class KeyUsage:
    """What the requests of one name of keys did in one pass: increments."""

    requests: int = 0  # taken in, resumes included
    ended: int = 0
    prompt_tokens: int = 0  # of requests taken in, without resumes and what is submitted again
    generation_tokens: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # by quota


@dataclass(slots=True)
class PassObservation:
    """What happened in one pass of the loop: counts are increments, times are in seconds.

    Replayed and resumed tokens are in none; a resume adds nothing to the prompts, the prefix lookups, the queue and the first tokens.
    """

    prompt_tokens: int = 0  # of requests admitted for the first time
    generation_tokens: int = 0
    prefix_query_tokens: int = 0  # looked up at first admission
    prefix_hit_tokens: int = 0
    preemptions: int = 0  # sequences that gave their pages back to others
    readmissions: int = 0  # sequences admitted again, for whatever reason
    worker_losses: int = 0  # sequences whose worker was lost or reset
    replays_exhausted: int = 0  # sequences ended by the replay cap
    numerics_changes: int = 0  # sequences continued under another numerics id
    requests_received: int = 0  # each ends in exactly one entry of `finished` or `failed`
    finished: list[FinishReason] = field(default_factory=list)  # per request: LENGTH if one of its choices ended so
    failed: list[Failure] = field(default_factory=list)  # one entry per failed request
    queue_seconds: list[float] = field(default_factory=list)  # arrival to first scheduled step, per request
    first_token_seconds: list[float] = field(default_factory=list)  # TTFT, per request
    inter_token_seconds: dict[float, int] = field(default_factory=dict)  # ITL: gap -> how many tokens had it
    output_token_seconds: list[float] = field(default_factory=list)  # TPOT, of choices with at least two tokens
    total_seconds: list[float] = field(default_factory=list)  # end to end, of finished choices
    prefill_seconds: list[float] = field(default_factory=list)  # first scheduled step to first token, per request
    decode_seconds: list[float] = field(default_factory=list)  # first token to end, of finished choices with at least two tokens
    request_prompt_tokens: list[int] = field(default_factory=list)  # length of the prompt, per request that began to run
    request_generation_tokens: list[int] = field(default_factory=list)  # length of the output, resumed tokens too, of finished choices
    step_seconds: list[float] = field(default_factory=list)  # round trip: step sent to result taken in
    step_tokens: list[int] = field(default_factory=list)  # tokens run, beside step_seconds
    device_seconds: list[float] = field(default_factory=list)  # device time of each step
    device_idle_seconds: list[float] = field(default_factory=list)  # device idle before each step that went on with earlier work
    loop_lag_seconds: float = 0.0  # from the event that woke the loop to the start of the pass
    usage: dict[str, KeyUsage] = field(default_factory=dict)  # by name of keys

    def usage_of(self, tenant: Tenant) -> KeyUsage:
        """Where the usage of a tenant is counted."""
        return self.usage.setdefault(tenant.name if tenant.is_named else UNNAMED, KeyUsage())


class EngineMetrics(Protocol):
    """Receives the engine's observations."""

    def observe(self, observed: PassObservation) -> None:
        """Add up one pass; called on the engine's event loop, must not block nor keep `observed`."""


class EngineStats:
    """Observations of the pass under way, and the latest snapshot, which is at least `snapshot_seconds` old when it is replaced."""

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, snapshot_seconds: float, now: float) -> None:
        self.observed = PassObservation()
        self.tracers = Tracers()
        self._scheduler = scheduler
        self._metrics = metrics
        self._metrics_failing = False
        self._mean_queue_seconds = 0.0
        self._published = SchedulerCounters()
        self._snapshot_seconds = snapshot_seconds
        self._is_stale = False
        self.snapshot = self.take_snapshot(now, healthy=True)

    @property
    def retry_after_seconds(self) -> float:
        """When to come back after a full queue: how long requests have waited lately."""
        return min(max(self._mean_queue_seconds, MIN_RETRY), MAX_RETRY)

    # Observations

    def count_step(self, updates: SequenceUpdates, result: StepResult, now: float) -> None:
        """Count a step that was answered."""
        self.observed.step_seconds.append(now - updates.sent_time)
        self.observed.step_tokens.append(updates.num_tokens)
        self.observed.device_seconds.append(result.device_seconds)
        if updates.continued:
            self.observed.device_idle_seconds.append(result.idle_seconds)

    def count_tokens(self, choices: Collection[LiveChoice], now: float) -> None:
        """Count the next token of each of some choices."""
        self.observed.generation_tokens += len(choices)
        times = Counter([choice.last_token.seconds for choice in choices])
        if times.pop(None, 0):
            for choice in choices:
                if choice.first_token_time is None:
                    self._count_first_token(choice, now)
        for last_token_time, count in times.items():
            assert last_token_time is not None
            self._count_gap(now - last_token_time, count)

    def count_batch(self, batch: ChoiceBatch, now: float) -> None:
        """Count the next token of each choice of a batch that has got one before."""
        assert batch.time.seconds is not None
        self.observed.generation_tokens += len(batch.sequences)
        self._count_gap(now - batch.time.seconds, len(batch.sequences))

    def _count_gap(self, seconds: float, count: int) -> None:
        gaps = self.observed.inter_token_seconds
        gaps[seconds] = gaps.get(seconds, 0) + count

    def _count_first_token(self, choice: LiveChoice, now: float) -> None:
        choice.first_token_time = now
        if not (choice.sequence.is_resume or choice.request.has_tokens):
            self.observed.first_token_seconds.append(now - choice.request.spec.arrival_time)
            assert choice.sequence.first_scheduled_time is not None
            self.observed.prefill_seconds.append(now - choice.sequence.first_scheduled_time)
        choice.request.has_tokens = True

    def count_finished(self, choice: LiveChoice, finished: SequenceFinished) -> None:
        """Count a choice that ended."""
        self.observed.total_seconds.append(finished.total_seconds)
        self.observed.request_generation_tokens.append(finished.num_generated_tokens)
        if choice.num_new_tokens > 1:
            rest = finished.total_seconds - finished.first_token_seconds
            self.observed.output_token_seconds.append(rest / (choice.num_new_tokens - 1))
            self.observed.decode_seconds.append(rest)

    def count_started(self, sequences: Iterable[Sequence]) -> None:
        """Count the time for which requests waited until they first ran."""
        for sequence in sequences:
            assert sequence.first_scheduled_time is not None
            waited = sequence.first_scheduled_time - sequence.arrival_time
            if not sequence.is_resume:
                self.observed.queue_seconds.append(waited)
                self.observed.request_prompt_tokens.append(sequence.num_prompt_tokens)
            self._mean_queue_seconds += _QUEUE_SMOOTHING * (waited - self._mean_queue_seconds)

    def publish(self) -> None:
        """Hand the observations of a pass to the metrics and start anew. No request is to suffer from metrics that fail."""
        observed, self.observed = self.observed, PassObservation()
        if self._published != self._scheduler.counters:
            before, self._published = self._published, copy(self._scheduler.counters)
            for name in _COUNTERS:
                setattr(observed, name, getattr(self._published, name) - getattr(before, name))
        try:
            self._metrics.observe(observed)
        except Exception:
            if not self._metrics_failing:
                _log.exception("metrics failed; the figures of some passes are lost")
            self._metrics_failing = True
        else:
            self._metrics_failing = False

    # The snapshot

    def is_snapshot_due(self, now: float) -> bool:
        """Whether the latest snapshot is old."""
        return now - self._snapshot_time >= self._snapshot_seconds

    def next_snapshot(self, healthy: bool) -> float | None:
        """When a pass is to replace the snapshot; None while nothing has happened since the latest one and all is well."""
        return self._snapshot_time + self._snapshot_seconds if self._is_stale or not healthy else None

    def refresh_snapshot(self, now: float, healthy: bool) -> None:
        """Replace the snapshot after a pass, if it is old or health has changed."""
        self._is_stale = True
        if self.is_snapshot_due(now) or healthy != self.snapshot.healthy:
            self.take_snapshot(now, healthy)

    def take_snapshot(self, now: float, healthy: bool) -> EngineSnapshot:
        """Replace the snapshot; returns it."""
        self.snapshot = EngineSnapshot.of(self._scheduler, healthy, self.retry_after_seconds)
        self._snapshot_time = now
        self._is_stale = False
        return self.snapshot
