"""Snapshots of the engine. They are immutable: any thread may read them.

Prompts and output are part of one only when they are asked for.
"""

from dataclasses import dataclass

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.replica import Replica
from control_plane.core.scheduler import Scheduler
from control_plane.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker in session."""

    address: str
    incarnation: str
    epoch: int
    numerics_id: str
    num_running: int
    steps_in_flight: int
    sent_step_id: int
    acked_step_id: int
    pages: PageCounts  # summed over cache groups and partitions

    @classmethod
    def of(cls, replica: Replica) -> "WorkerSnapshot":
        """Describe a worker."""
        description = replica.description
        return cls(
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


@dataclass(frozen=True, slots=True)
class RefusedWorker:
    """A worker that is in no session, as it or the control plane refuses the other."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The numbers of the engine at one moment."""

    workers: tuple[WorkerSnapshot, ...] = ()
    num_running: int = 0  # sequences that hold a lane
    num_waiting_for_capacity: int = 0
    num_waiting_for_worker: int = 0  # no worker in session can take them
    num_held: int = 0  # sequences that neither run nor wait, because their reader is slow
    num_waiting_tokens: int = 0  # known tokens of sequences that wait
    num_stranded_tokens: int = 0  # those of them that no worker in session can take
    max_model_len: int = 0  # 0 until the first worker is in session
    retry_after_seconds: float = 0.1  # advice for who finds the queue full: how long requests have waited lately
    healthy: bool = True  # False after an unexpected error that no request could be blamed for, until a clean pass with no reset pending
    trouble: str = ""  # of a front end with its scheduler: why nothing is known of workers

    @classmethod
    def of(cls, scheduler: Scheduler, healthy: bool, retry_after_seconds: float) -> "EngineSnapshot":
        """Describe the engine."""
        waiting, num_stranded = scheduler.waiting, scheduler.waiting.num_stranded
        return cls(
            workers=tuple(WorkerSnapshot.of(replica) for replica in scheduler.replicas),
            num_running=sum(len(replica.running) for replica in scheduler.replicas),
            num_waiting_for_capacity=len(waiting) - num_stranded,
            num_waiting_for_worker=num_stranded,
            num_held=scheduler.num_held,
            num_waiting_tokens=waiting.num_tokens,
            num_stranded_tokens=waiting.num_stranded_tokens,
            max_model_len=scheduler.max_model_len or 0,
            retry_after_seconds=retry_after_seconds,
            healthy=healthy,
        )


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One live sequence."""

    request_id: str
    choice: int
    worker: str  # address; empty while it waits
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_pages: int
    is_held: bool  # its reader is slow
    age_seconds: float  # since its request arrived
    queue_seconds: float  # until it ran for the first time, or until now
    token_ids: tuple[int, ...]  # prompt and output, if they were asked for

    @classmethod
    def of(cls, sequence: Sequence, is_held: bool, now: float, with_token_ids: bool) -> "SequenceState":
        """Describe a live sequence."""
        replica, first_time = sequence.replica, sequence.first_scheduled_time
        return cls(
            request_id=sequence.request_id,
            choice=sequence.choice,
            worker=replica.description.address if replica else "",
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=sequence.num_generated_tokens,
            num_computed_tokens=sequence.num_computed_tokens,
            num_pages=sequence.pages.num_pages if replica else 0,
            is_held=is_held,
            age_seconds=now - sequence.arrival_time,
            queue_seconds=(now if first_time is None else first_time) - sequence.arrival_time,
            token_ids=tuple(sequence.token_ids) if with_token_ids else (),
        )


@dataclass(frozen=True, slots=True)
class EngineState:
    """The numbers and, if asked for, the sequences at one moment."""

    snapshot: EngineSnapshot
    sequences: tuple[SequenceState, ...]
