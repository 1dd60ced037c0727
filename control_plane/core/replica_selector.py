"""Selects the worker for a waiting sequence."""

from collections.abc import Mapping
from collections.abc import Sequence as Replicas
from dataclasses import dataclass

from control_plane.core.options import SchedulerOptions
from control_plane.core.pages.page_tables import PrefixHit
from control_plane.core.replica import Replica
from control_plane.core.sequence import Sequence
from control_plane.core.step_builder import StepBuilder
from control_plane.core.waiting_queue import WaitingQueue

#: A running sequence weighs as much as so many tokens that wait to be computed.
_SEQUENCE_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class AdmissionTarget:
    """A worker on which a sequence fits, and the start of it that lies there."""

    replica: Replica
    hit: PrefixHit
    num_tokens: int  # of the sequence, to be computed there
    cost: tuple[int, bool, int]  # tokens to be computed there before it is through; what breaks ties: a step later, pages in use

    @property
    def weight(self) -> int:
        """What the sequence adds to the load of the worker."""
        return self.num_tokens + _SEQUENCE_WEIGHT

    @property
    def is_long(self) -> bool:
        """Whether the prompt takes more than two steps of half the budget."""
        return self.num_tokens > self.replica.max_step_tokens


class ReplicaSelector:
    """Finds the worker where the least is to be computed: what is pending there, and what its cache lacks of the sequence.

    For a sequence that was overtaken too often it closes one worker to everybody else, the one that is likely to have the pages soonest; as
    far as numerics allow the same for all such sequences.
    """

    def __init__(self, replicas: Replicas[Replica], waiting: WaitingQueue, options: SchedulerOptions) -> None:
        self._replicas = replicas
        self._waiting = waiting
        self._options = options
        self._saved: dict[Sequence, Replica] = {}  # where pages are saved for whom
        self._builders: Mapping[Replica, StepBuilder] = {}
        self._closed: set[Replica] = set()
        self._priority: int | None = None  # of the sequences that this pass looks at now
        self.num_looks = 0  # at partitions of workers in this pass

    def begin(self, builders: Mapping[Replica, StepBuilder]) -> None:
        """Begin a pass in which some workers take a step; nobody is admitted where somebody was preempted."""
        self._builders = builders
        self.num_looks = 0
        self._priority = None
        self._closed = {replica for replica, builder in builders.items() if builder.preempted}
        self._saved = {
            sequence: replica
            for sequence, replica in self._saved.items()
            if sequence.passed_at is not None and replica in self._eligible(sequence) and not replica.draining
        }

    def is_open(self, replica: Replica) -> bool:
        """Whether somebody may be admitted by a worker."""
        return replica.accepts_sequence and replica not in self._closed

    def find(self, sequence: Sequence) -> AdmissionTarget | None:
        """The best target for a sequence; None when it fits nowhere."""
        best: AdmissionTarget | None = None
        for replica in self._eligible(sequence):
            if not (self.is_open(replica) and replica.may_try_suspect(sequence)):
                continue
            builder = self._builders.get(replica)
            load = replica.num_pending_tokens + self._waiting.deferred_tokens(replica)
            if builder:  # what runs in this step does not count any more, just as at those who sent theirs
                load -= builder.num_scheduled_tokens
            for partition, num_running in enumerate(replica.num_running_by_partition):
                self.num_looks += 1
                hit = replica.find_fitting_hit(sequence, partition)
                if hit is None:
                    continue
                num_tokens = len(sequence.token_ids) - hit.num_tokens
                tokens = load + _SEQUENCE_WEIGHT * num_running * len(replica.num_running_by_partition) + num_tokens
                cost = (tokens, builder is None, replica.kv.num_referenced(partition))
                if best is None or cost < best.cost:
                    best = AdmissionTarget(replica, hit, num_tokens, cost)
        return best

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a worker is closed to a suspect only because others are tried there."""
        return any(self.is_open(replica) and not replica.may_try_suspect(sequence) for replica in self._eligible(sequence))

    def drop_shared_prompt(self, sequence: Sequence) -> bool:
        """Drop a prompt that is kept for choices to come, on a worker where nobody else is about to free pages."""
        return any(
            replica.drop_shared_prompt(partition)
            for replica in self._eligible(sequence)
            if self.is_open(replica) and replica.is_idle
            for partition in range(replica.description.num_partitions)
        )

    def save_pages(self, passed: list[Sequence]) -> None:
        """Close a worker for each sequence that does not fit and was overtaken too often."""
        for sequence in passed:
            if self._waiting.num_overtakes(sequence) >= self._options.max_overtakes:
                if sequence not in self._saved:
                    self._choose(sequence)
                if sequence in self._saved:
                    self._closed.add(self._saved[sequence])

    def keep_order(self, passed: list[Sequence], priority: int) -> None:
        """Go on with sequences of a priority: where that is strict, close every worker on which one of a lower number does not fit."""
        if self._options.strict_priorities and priority != self._priority:
            self._priority = priority
            for sequence in passed:
                if sequence.priority < priority:
                    self._closed.update(self._eligible(sequence))

    def _choose(self, sequence: Sequence) -> None:
        eligible = [replica for replica in self._eligible(sequence) if not replica.draining]
        chosen = set(self._saved.values())
        candidates = [replica for replica in eligible if replica in chosen] or eligible
        if candidates:
            self._saved[sequence] = min(candidates, key=lambda replica: replica.num_tokens_until_room(sequence))

    def _eligible(self, sequence: Sequence) -> list[Replica]:
        """Workers that can run a sequence, if not now."""
        return [replica for replica in self._replicas if replica.can_run(sequence)]
