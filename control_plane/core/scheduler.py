"""Decides what every worker runs next."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from control_plane.core.length_limit import LengthLimit
from control_plane.core.options import SchedulerOptions
from control_plane.core.prompt_sharing import PromptSharing
from control_plane.core.replica import Replica
from control_plane.core.replica_selector import AdmissionTarget, ReplicaSelector
from control_plane.core.sequence import FailedSequence, Sequence, SequenceUpdates
from control_plane.core.step import Step, StepResult, WorkerDescription
from control_plane.core.step_builder import StepBuilder
from control_plane.core.waiting_queue import SUSPECTS, Line, WaitingQueue

#: Waiting sequences that one pass finds not to fit, workers that it looks at for all of them, and tokens that it hashes for that, beside
#: those of the last one; they bound its cost.
_MAX_PASSED, _MAX_LOOKS, _MAX_HASHED_TOKENS = 16, 1024, 16_384

#: Pages that one audit looks at, which takes about a millisecond.
_AUDITED_PAGES = 2048


_max_length = attrgetter("max_length")


@dataclass(slots=True)
class SchedulerCounters:
    """What happened since the start."""

    prompt_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    readmissions: int = 0
    worker_losses: int = 0
    numerics_changes: int = 0


class Scheduler:
    """One waiting queue and one replica per worker in session. Not thread-safe; time is passed in, in seconds."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        self.options = options or SchedulerOptions()
        self.numerics_seen: set[str | None] = set()  # of all workers that were in session
        self.first_join_time: float | None = None
        self.length_limit = LengthLimit(self.options.grace_seconds)
        self.replicas: list[Replica] = []
        self.waiting = WaitingQueue()
        self.counters = SchedulerCounters()
        self._arrivals = itertools.count(1)
        self._generations = itertools.count(1)
        self._started: list[Sequence] = []
        self._held: set[Sequence] = set()
        self._failed: list[FailedSequence] = []
        self._selector = ReplicaSelector(self.replicas, self.waiting, self.options)
        self._sharing = PromptSharing(self.replicas, self.waiting)
        self._num_audits = 0

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of a request; None until the first worker comes."""
        return self.length_limit.tokens

    # Workers

    def add_replica(self, description: WorkerDescription, now: float) -> Replica:
        """Begin to schedule for a worker."""
        replica = Replica(description, self.options)
        self.replicas.append(replica)
        self.numerics_seen.add(description.numerics_id)
        if self.first_join_time is None:
            self.first_join_time = now
        self._workers_changed(now)
        for other in self.replicas:
            if other.draining:
                self.drain_replica(other, now)
        return replica

    def remove_replica(self, replica: Replica, now: float) -> list[Sequence]:
        """Forget a lost worker and admit its sequences again; returns those that have lost too many and are to be finished."""
        self.replicas.remove(replica)
        exhausted = self._count_losses(replica)
        self._move_all(replica, now)
        self._workers_changed(now)
        return exhausted

    def reset_replica(self, replica: Replica, now: float, counts: bool = False) -> list[Sequence]:
        """Forget what a worker holds, which is told to forget it too; nothing is sent to it until `reset_done`.

        Its sequences are admitted again. `counts`: it failed under them, which counts like a loss; returns those that have lost too many
        and are to be finished.
        """
        exhausted = self._count_losses(replica) if counts else []
        self._move_all(replica, now)
        replica.clear()
        replica.resetting = True
        return exhausted

    def reset_done(self, replica: Replica) -> None:
        """The worker holds nothing any more."""
        replica.resetting = False

    def drain_replica(self, replica: Replica, now: float) -> None:
        """Give a worker nothing new, and move its sequences if another one can take them."""
        replica.draining = True
        self._workers_changed(now)
        targets = [other for other in self.replicas if not other.draining]
        for sequence in tuple(replica.running):
            if any(target.can_run(sequence) for target in targets):
                self.readmit(sequence, now)

    # Sequences

    def submit(self, sequence: Sequence, now: float) -> None:
        """Let a new sequence wait for its admission. Waiting improves the priority, at the same rate for all: the order never changes."""
        arrival_time = sequence.arrival_time
        sequence.order = (sequence.priority + arrival_time / self.options.ageing_seconds, arrival_time, next(self._arrivals))
        self._wait(sequence, now)

    def readmit(self, sequence: Sequence, now: float) -> None:
        """Take a sequence off its worker and let it wait again, with all its tokens, in its old place in the order."""
        assert sequence.replica is not None
        sequence.replica.remove(sequence)
        self._wait(sequence, now)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        self._remove(sequence, is_stale=False)

    @property
    def num_held(self) -> int:
        """Sequences that neither run nor wait."""
        return len(self._held)

    def hold(self, sequence: Sequence, now: float) -> None:
        """Let a sequence neither run nor wait, since its reader is slow. It keeps its place in the order.

        Its pages become cached ones, the first to be evicted.
        """
        self._remove(sequence, is_stale=True)
        self._held.add(sequence)

    def unhold(self, sequence: Sequence, now: float) -> None:
        """Let a held sequence wait again."""
        self._held.remove(sequence)
        self._wait(sequence, now)

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences that waited for a worker for the whole grace time."""
        self.length_limit.fall(now)
        return self.waiting.overdue(now, self.options.grace_seconds)

    def next_overdue(self) -> float | None:
        """When `overdue` will have something to say unless a worker comes."""
        dues = (self.waiting.next_overdue(self.options.grace_seconds), self.length_limit.due)
        return min((due for due in dues if due is not None), default=None)

    # Steps

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether a worker owes a result."""
        return any(replica.num_steps_in_flight for replica in self.replicas)

    def schedule(self, now: float) -> list[tuple[Replica, Step]]:
        """Build at most one step for every worker that accepts one; each is to be sent at once."""
        builders = {replica: StepBuilder(replica) for replica in self.replicas if replica.accepts_step}
        if not builders:
            return []
        others_wait = self.waiting.is_open
        for builder in builders.values():
            builder.run_live()
            for victim in builder.preempted:
                self.counters.preemptions += 1
                self._wait(victim, now)
        if others_wait:
            self._selector.begin(builders)
            self._admit(builders, now)
        steps = [(replica, builder.finish(now)) for replica, builder in builders.items()]
        self._failed += [failed for builder in builders.values() for failed in builder.failed]
        return [(replica, step) for replica, step in steps if step is not None]

    def update(self, replica: Replica, result: StepResult) -> SequenceUpdates:
        """Apply a result; raises StateMismatch, upon which the replica is to be reset."""
        updates = replica.update(result)
        self._sharing.open_groups()
        return updates

    def pop_started(self) -> list[Sequence]:
        """Sequences that were the first of their requests to run, since the last call."""
        started, self._started = self._started, []
        return started

    def pop_failed(self) -> list[FailedSequence]:
        """Sequences that `schedule` found unable to go on since the last call; they are to be finished."""
        failed, self._failed = self._failed, []
        return failed

    def abandon(self) -> None:
        """Forget every sequence, whatever state they are in, and what the workers hold; those are to be reset."""
        for replica in self.replicas:
            replica.abandon()
        self.waiting.clear()
        self._held.clear()
        self._failed.clear()
        self._sharing.clear()

    def forget_cached(self) -> int:
        """Free every page that no sequence uses; returns how many."""
        return sum(replica.kv.forget_cached() for replica in self.replicas)

    def check_integrity(self) -> None:
        """Assert the conservation of pages on every worker."""
        for replica in self.replicas:
            replica.check_integrity()

    def audit(self) -> None:
        """Assert it of some pages of one worker, of others in each call, so that none takes long."""
        if self.replicas:
            self._num_audits += 1
            self.replicas[self._num_audits % len(self.replicas)].kv.audit(_AUDITED_PAGES)

    # Admission

    def _admit(self, builders: dict[Replica, StepBuilder], now: float) -> None:
        """Admit waiting sequences, in order; those that do not fit are overtaken, but not too often."""
        passed: list[Sequence] = []  # they do not fit now
        num_hashed = 0
        self.waiting.recall(line for replica, builder in builders.items() for line in self._open_lines(replica, builder))
        while len(passed) < _MAX_PASSED and self._selector.num_looks < _MAX_LOOKS and num_hashed < _MAX_HASHED_TOKENS:
            sequence = self.waiting.candidate(0)
            if sequence is None:
                break
            self._selector.keep_order(passed, sequence.priority)
            if not any(builder.has_room and self._selector.is_open(replica) for replica, builder in builders.items()):
                break
            num_hashed -= sequence.hashes.num_tokens
            target = self._selector.find(sequence)
            num_hashed += sequence.hashes.num_tokens
            if target is None and self._selector.must_wait(sequence):
                self.waiting.defer(sequence, SUSPECTS, 0)
                continue
            if target is None and self._selector.drop_shared_prompt(sequence):
                continue
            if target is None:
                self.waiting.passed(sequence)
                passed.append(sequence)
            elif (builder := builders.get(target.replica)) and builder.accepts(target.is_long):
                if self.options.strict_priorities and self.waiting.recall_ahead(sequence, passed):
                    continue
                self._start(sequence, target, builder, now)
                self.waiting.recall_deferred((target.replica, target.is_long), 1)
            else:
                self.waiting.defer(sequence, (target.replica, target.is_long), target.weight)
            self._selector.save_pages(passed)

    @staticmethod
    def _open_lines(replica: Replica, builder: StepBuilder) -> Iterator[Line]:
        if builder.has_room and replica.accepts_sequence:
            yield SUSPECTS
            yield replica, False
            if builder.accepts_long:
                yield replica, True

    def _start(self, sequence: Sequence, target: AdmissionTarget, builder: StepBuilder, now: float) -> None:
        self.waiting.admitted(sequence)
        target.replica.admit(sequence, next(self._generations), target.hit)
        if sequence.num_admissions > 1:
            self.counters.readmissions += 1
        else:
            sequence.first_scheduled_time = now
            if sequence.group is None or not sequence.group.has_started:
                self._started.append(sequence)
                if not sequence.is_resume:  # whose prompt was counted when it ran before
                    self.counters.prompt_tokens += sequence.num_prompt_tokens
                    self.counters.prefix_query_tokens += sequence.num_prompt_tokens
                    self.counters.prefix_hit_tokens += sequence.num_cached_tokens
        if sequence.group is not None:
            self._sharing.started(sequence.group, sequence)
        builder.admit(sequence, target.is_long)

    # Moving

    def _remove(self, sequence: Sequence, is_stale: bool) -> None:
        if sequence in self._held:
            self._held.remove(sequence)
        elif sequence.replica is not None:
            sequence.replica.remove(sequence, is_stale)
        else:
            self.waiting.remove(sequence)
        if sequence.group is not None:
            self._sharing.leave(sequence.group, sequence)

    def _count_losses(self, replica: Replica) -> list[Sequence]:
        replica.suspect_sequences_in_flight()
        most = self.options.max_losses
        return [sequence for sequence in replica.running if sequence.suspicion and sequence.suspicion.num_losses_alone >= most]

    def _move_all(self, replica: Replica, now: float) -> None:
        self.counters.worker_losses += len(replica.running)
        for sequence in tuple(replica.running):
            self.readmit(sequence, now)

    def _wait(self, sequence: Sequence, now: float) -> None:
        if sequence.group is not None:
            sequence.group.join(sequence)
        self._untie(sequence)
        self.waiting.push(sequence, now)

    def _workers_changed(self, now: float) -> None:
        numerics_ids = self._numerics_ids()
        live = [replica for replica in self.replicas if not replica.draining]
        self.length_limit.workers_changed([replica.max_length for replica in live], now)
        self.waiting.strand({replica.description.numerics_id: replica.max_length for replica in sorted(live, key=_max_length)}, now)
        if self.options.continue_on_numerics_change and numerics_ids:
            for sequence in self.waiting.tied_and_stranded():
                self.waiting.remove(sequence)
                self._untie(sequence)
                self.waiting.push(sequence, now)

    def _numerics_ids(self) -> set[str]:
        return {replica.description.numerics_id for replica in self.replicas if not replica.draining}

    def _untie(self, sequence: Sequence) -> None:
        """Let a sequence go on under other numerics, if that is wanted and its own are gone."""
        numerics_ids = self._numerics_ids()
        if self.options.continue_on_numerics_change and sequence.numerics_id and numerics_ids and sequence.numerics_id not in numerics_ids:
            sequence.numerics_id = None
            self.counters.numerics_changes += 1
