"""Gathers what the engine tells about itself."""

from dataclasses import dataclass, field, fields
from dataclasses import replace as copy

from control_plane.core.replica import Replica
from control_plane.core.scheduler import Scheduler, SchedulerCounters
from control_plane.core.sequence import Sequence
from control_plane.core.step import StepResult
from control_plane.core.step_outcome import StepOutcome
from control_plane.engine.generation import Generation
from control_plane.engine.metrics_port import EngineGauges, EngineMetrics, PassObservation, WorkerGauges
from control_plane.engine.ports import SequenceFinished

#: Share of the newest value in the moving average of the time in the queue.
_QUEUE_SMOOTHING = 0.1

#: Bounds of the advice when to come back after a full queue, in seconds.
MIN_RETRY, MAX_RETRY = 0.1, 60.0

#: Counts of the scheduler that an observation has under the same name.
_COUNTERS = tuple(counter.name for counter in fields(SchedulerCounters))


@dataclass(slots=True)
class EngineStats:
    """Observations of the pass under way."""

    metrics: EngineMetrics
    observed: PassObservation = field(default_factory=PassObservation)
    mean_queue_seconds: float = 0.0
    _told: SchedulerCounters = field(default_factory=SchedulerCounters)

    @property
    def retry_after_seconds(self) -> float:
        """When to come back after a full queue: how long requests have waited lately."""
        return min(max(self.mean_queue_seconds, MIN_RETRY), MAX_RETRY)

    def started(self, sequence: Sequence) -> None:
        """The first sequence of a request began to run."""
        assert sequence.first_scheduled_time is not None
        waited = sequence.first_scheduled_time - sequence.arrival_time
        if not sequence.is_resume:
            self.observed.queue_seconds.append(waited)
        self.mean_queue_seconds += _QUEUE_SMOOTHING * (waited - self.mean_queue_seconds)

    def stepped(self, outcome: StepOutcome, result: StepResult, now: float) -> None:
        """A step was answered."""
        self.observed.step_seconds.append(now - outcome.sent_time)
        self.observed.step_tokens.append(outcome.num_tokens)
        self.observed.device_seconds.append(result.device_seconds)
        if outcome.continued:
            self.observed.device_idle_seconds.append(result.idle_seconds)

    def generated(self, generation: Generation, now: float) -> None:
        """A token of a choice arrived."""
        self.observed.generation_tokens += 1
        if generation.first_token_time is None:
            generation.first_token_time = now
            if not (generation.sequence.is_resume or generation.request.has_tokens):
                self.observed.first_token_seconds.append(now - generation.request.spec.arrival_time)
            generation.request.has_tokens = True
        elif generation.last_token_time is not None:
            gap = now - generation.last_token_time
            self.observed.inter_token_seconds[gap] = self.observed.inter_token_seconds.get(gap, 0) + 1
        generation.last_token_time = now

    def finished(self, generation: Generation, finished: SequenceFinished) -> None:
        """A choice ended."""
        self.observed.total_seconds.append(finished.total_seconds)
        if generation.num_new_tokens > 1:
            rest = finished.total_seconds - finished.first_token_seconds
            self.observed.output_token_seconds.append(rest / (generation.num_new_tokens - 1))

    def tell(self, counters: SchedulerCounters) -> None:
        """Hand the observations of a pass out and start anew."""
        observed, self.observed = self.observed, PassObservation()
        before, self._told = self._told, copy(counters)
        for name in _COUNTERS:
            setattr(observed, name, getattr(counters, name) - getattr(before, name))
        self.metrics.observe(observed)


def snapshot(scheduler: Scheduler, healthy: bool, retry_after_seconds: float = MIN_RETRY) -> EngineGauges:
    """Take the gauges."""
    num_stranded = scheduler.waiting.num_stranded
    return EngineGauges(
        workers=tuple(_worker(replica) for replica in scheduler.replicas),
        num_running=sum(len(replica.running) for replica in scheduler.replicas),
        num_waiting_for_capacity=len(scheduler.waiting) - num_stranded,
        num_waiting_for_worker=num_stranded,
        num_held=scheduler.num_held,
        num_waiting_tokens=scheduler.waiting.num_tokens,
        num_stranded_tokens=scheduler.waiting.num_stranded_tokens,
        max_model_len=scheduler.max_model_len or 0,
        retry_after_seconds=retry_after_seconds,
        healthy=healthy,
    )


def _worker(replica: Replica) -> WorkerGauges:
    description = replica.description
    return WorkerGauges(
        address=description.address,
        incarnation=description.incarnation,
        epoch=description.epoch,
        numerics_id=description.numerics_id,
        num_running=len(replica.running),
        steps_in_flight=replica.num_steps_in_flight,
        sent_step_id=replica.sent_step_id,
        acked_step_id=replica.acked_step_id,
        pages=replica.kv.counts(),
    )
