"""The scheduler's books on one worker in session."""

import bisect
import math
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

from control_plane.core.constraint import ConstraintViolated
from control_plane.core.length_limit import longest_sequence
from control_plane.core.options import SchedulerOptions
from control_plane.core.pages.kv_cache import KVCacheManager
from control_plane.core.pages.page_tables import PageTables, PrefixHit
from control_plane.core.sampled_batch import SampledBatch
from control_plane.core.sequence import FailedSequence, Sequence, SequenceUpdates, Suspicion
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.step import PromptLogprobChunk, Step, StepResult, WorkerDescription

_order = attrgetter("order")
_num_tokens = attrgetter("num_tokens")

#: Waiting sequences whose hit on a worker is remembered, while nothing changes there.
_MAX_REMEMBERED_HITS = 1024

#: Fields of a request that can exclude every token.
_NOTHING_LEFT = "constraint and min_tokens leave none"


class StateMismatch(Exception):
    """The worker's answer does not fit what it was sent; nothing of it was applied. The worker is to be reset."""


class StepFailed(StateMismatch):
    """The worker could not run a step."""


def _num_tokens_left(sequence: Sequence) -> int:
    return sequence.final_length - sequence.num_tokens


#: What a step computes of a sequence: the sequence and its generation then, tokens computed after the step, whether it samples.
ScheduledRun = tuple[Sequence, int, int, bool]


@dataclass(slots=True)
class StepInFlight:
    """What is kept of a step from when it is sent until its result comes."""

    step_id: int
    sent_time: float
    num_tokens: int
    continued: bool
    has_masks: bool
    runs: list[ScheduledRun]
    num_removals: int  # of sequences until then: while it is the same all of them are still there


class Replica:
    """Lanes, pages, running sequences and steps in flight of one worker in session."""

    def __init__(self, description: WorkerDescription, options: SchedulerOptions) -> None:
        self.description = description
        self.max_length = longest_sequence(description, options.max_model_len)  # of a sequence
        self.max_step_tokens = min(description.max_step_tokens, options.max_step_tokens)
        # Were there more, not every decode would run in every step.
        self.max_running = min(description.max_lanes, options.max_sequences, self.max_step_tokens)
        self.max_steps_in_flight = min(description.max_steps_in_flight, options.max_steps_in_flight)
        self.draining = False
        self.resetting = False
        self.starved = False  # a running sequence waits for pages
        self.sent_step_id = 0
        self.acked_step_id = 0
        self._num_removals = 0
        self.running: list[Sequence] = []  # sorted by order
        self.kv: KVCacheManager
        self._options = options
        self.clear()

    def clear(self) -> None:
        """Forget everything that the worker holds; step ids go on. Nothing may run any more."""
        assert not self.running
        description, options = self.description, self._options
        self.kv = KVCacheManager(description.cache_groups, description.num_partitions, options.prefix_caching, options.watermark)
        self.acked_step_id = self.sent_step_id
        self.starved = False
        self._in_flight: deque[StepInFlight] = deque()
        self._batch, self._batch_removals = SampledBatch([], description.numerics_id), 0  # of the last result
        self._lanes: list[Sequence | None] = [None] * description.max_lanes
        self._free_lanes = list(range(description.max_lanes - 1, -1, -1))
        self._released_lanes: list[int] = []
        self.num_pending_tokens = 0  # to be computed before every running sequence decodes
        self.suspects: list[Sequence] = []  # running
        self.tried_suspects = False  # in the last step
        self.num_running_by_partition = [0] * description.num_partitions  # running sequences per partition
        self._fitting_hits: dict[tuple[Sequence, int, int], PrefixHit | None] = {}  # found for waiting sequences in the present state
        self._fitting_version = 0
        self._shared: dict[SiblingGroup, PageTables] = {}  # prompts that are kept for choices to come

    def abandon(self) -> None:
        """Drop every sequence without looking at it; the worker is to be reset."""
        self.running.clear()
        self.clear()
        self.resetting = True

    @property
    def num_steps_in_flight(self) -> int:
        """Steps sent and not answered."""
        return len(self._in_flight)

    @property
    def sequences_in_flight(self) -> list[Sequence]:
        """Sequences that a step in flight computes, each once."""
        return [sequence for sequence, generation in self._runs_in_flight if sequence.generation == generation]

    @property
    def num_in_flight(self) -> int:
        """How many sequences a step in flight computes, also those that have left meanwhile."""
        return len(self._runs_in_flight)

    @property
    def _runs_in_flight(self) -> list[tuple[Sequence, int]]:
        return list(dict.fromkeys((sequence, generation) for sent in self._in_flight for sequence, generation, *_ in sent.runs))

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens here by itself."""
        return not (self.running or self._in_flight)

    @property
    def accepts_step(self) -> bool:
        """Whether another step may be sent now. While suspects run it is clear of each whether it was in a lost step."""
        most = 1 if self.suspects else self.max_steps_in_flight
        return len(self._in_flight) < most and not self.resetting

    @property
    def tries_suspects(self) -> bool:
        """Whether the next step is one of suspects: every other one, while somebody else runs too."""
        return bool(self.suspects) and not (self.tried_suspects and len(self.suspects) < len(self.running))

    def can_run(self, sequence: Sequence) -> bool:
        """Whether a sequence may run here as far as numerics and its length go."""
        return sequence.numerics_id in (None, self.description.numerics_id) and sequence.final_length <= self.max_length

    def may_try_suspect(self, sequence: Sequence) -> bool:
        """Whether a sequence may be admitted here as far as it is a suspect."""
        return sequence.suspicion is None or sequence.suspicion.may_join([other.suspicion for other in self.suspects if other.suspicion])

    @property
    def accepts_sequence(self) -> bool:
        """Whether a sequence may be admitted here if it gets pages."""
        return len(self.running) < self.max_running and not (self.draining or self.resetting or self.starved)

    # Sequences

    def sequence_in(self, lane: int) -> Sequence | None:
        """The running sequence that has a lane."""
        return self._lanes[lane]

    def admit(self, sequence: Sequence, generation: int, hit: PrefixHit) -> None:
        """Give a sequence that fits a lane and pages."""
        pages = self.kv.admit(sequence.hashes, hit, sequence.num_admission_tokens)
        lane = self._free_lanes.pop()
        self._lanes[lane] = sequence
        sequence.assign(self, lane, generation, pages, hit.num_tokens)
        bisect.insort(self.running, sequence, key=_order)
        self.num_pending_tokens += sequence.num_prefill_tokens
        self.num_running_by_partition[hit.partition] += 1
        if sequence.suspicion is not None:
            self.suspects.append(sequence)

    def remove(self, sequence: Sequence, is_stale: bool = False) -> None:
        """Let a sequence go; its lane is released inside the next step, its pages are fenced. `is_stale`: and evicted first."""
        assert sequence.replica is self
        del self.running[bisect.bisect_left(self.running, sequence.order, key=_order)]
        self._num_removals += 1
        self.kv.release(sequence.pages, is_stale)
        self._lanes[sequence.lane] = None
        self._free_lanes.append(sequence.lane)
        self._released_lanes.append(sequence.lane)
        self.num_pending_tokens -= sequence.num_prefill_tokens
        self.num_running_by_partition[sequence.pages.partition] -= 1
        if sequence in self.suspects:
            self.suspects.remove(sequence)
        sequence.unassign()

    def check_integrity(self) -> None:
        """Assert the conservation of pages, and what is kept as sums."""
        self.kv.check_integrity()
        assert self.num_pending_tokens == sum(sequence.num_prefill_tokens for sequence in self.running)
        partitions = [sequence.pages.partition for sequence in self.running]
        assert self.num_running_by_partition == [partitions.count(partition) for partition in range(self.description.num_partitions)]

    def suspect_sequences_in_flight(self) -> None:
        """Hold the loss of the steps in flight against the sequences in them."""
        sequences = self.sequences_in_flight
        cohort, max_together = object(), max(1, len(sequences) // 2)
        for sequence in sequences:
            if sequence.suspicion is None:
                sequence.suspicion = Suspicion(cohort, max_together)
            sequence.suspicion.count_loss(sequence.num_computed_tokens, was_alone=self.num_in_flight == 1)

    # Room

    def find_fitting_hit(self, sequence: Sequence, partition: int) -> PrefixHit | None:
        """The prefix hit with which a waiting sequence fits into a partition; None when it does not. Looked up once for each state of the
        cache.
        """
        if self._fitting_version != self.kv.version or len(self._fitting_hits) >= _MAX_REMEMBERED_HITS:
            self._fitting_hits.clear()
            self._fitting_version = self.kv.version
        key = (sequence, sequence.num_admissions, partition)
        if key not in self._fitting_hits:
            hit = self.find_prefix(sequence, partition)
            fits = self.kv.fits(hit, sequence.num_admission_tokens, keep_reserve=bool(self.running))
            self._fitting_hits[key] = hit if fits else None
        return self._fitting_hits[key]

    def num_tokens_until_room(self, sequence: Sequence) -> float:
        """Tokens that a running sequence can still generate before a waiting one has pages, at the latest; as far as can be foreseen."""
        return min(self._num_tokens_until_room(sequence, partition) for partition in range(self.description.num_partitions))

    def _num_tokens_until_room(self, sequence: Sequence, partition: int) -> float:
        missing, num_tokens = self.kv.missing(partition, sequence.num_admission_tokens), 0
        others = [other for other in self.running if other.pages.partition == partition]
        for other in sorted(others, key=_num_tokens_left):
            if max(missing) <= 0:
                break
            missing = [wanted - freed for wanted, freed in zip(missing, other.pages.num_held, strict=True)]
            num_tokens = _num_tokens_left(other)
        return num_tokens if max(missing) <= 0 else math.inf

    # Prompts of several choices

    def find_prefix(self, sequence: Sequence, partition: int) -> PrefixHit:
        """Longest start of a sequence whose KV lies in a partition, in the cache or kept for its group."""
        hit = self.kv.find_prefix(sequence.hashes, partition, sequence.max_hit_tokens)
        shared = self._shared.get(sequence.group) if sequence.group else None
        if shared is None or shared.partition != partition:
            return hit
        return max(hit, self.kv.prefix_of(shared, sequence.max_hit_tokens), key=_num_tokens)

    def share(self, leader: Sequence, group: SiblingGroup) -> None:
        """Keep the prompt of a running sequence for its group, as far as its pages are full; of the last token all need the logits."""
        hit = self.kv.prefix_of(leader.pages, leader.num_prompt_tokens - 1)
        if hit.num_tokens:
            self._shared[group] = self.kv.admit(leader.hashes, hit, hit.num_tokens)

    def unshare(self, group: SiblingGroup) -> None:
        """Keep nothing for a group any more."""
        pages = self._shared.pop(group, None)
        if pages is not None:
            self.kv.release(pages)

    def drop_shared_prompt(self, partition: int) -> bool:
        """Keep one prompt less, for somebody who lacks pages; returns whether there was one."""
        group = next((group for group, pages in self._shared.items() if pages.partition == partition), None)
        if group is not None:
            self.unshare(group)
        return group is not None

    # Steps

    def pop_released_lanes(self) -> list[int]:
        """Lanes that the next step releases."""
        released, self._released_lanes = self._released_lanes, []
        return released

    def note_sent(self, step: Step, runs: list[ScheduledRun], now: float) -> None:
        """Note a step as sent."""
        self.sent_step_id = step.step_id
        self.kv.step_sent(step.step_id)
        continued = len(runs) > len(step.admissions)
        self._in_flight.append(StepInFlight(step.step_id, now, step.num_tokens, continued, bool(step.masks), runs, self._num_removals))

    def update(self, result: StepResult) -> SequenceUpdates:
        """Apply a result: tokens, counters, fences. Raises StateMismatch or StepFailed before any effect."""
        sent, updates, runs = self._read(result)
        chunks = [(sequence, chunk) for chunk in result.prompt_logprobs if (sequence := self._owner(chunk.lane, chunk.generation))]
        self._in_flight.popleft()
        for failure in updates.failed:
            if not failure.nothing_to_draw:
                self.kv.retract(failure.sequence.pages)  # what the worker computed for it may be as wrong as what it noticed
        if sent.has_masks:
            self._constrain(updates)
        updates.ended = self._batch_of(updates.sequences).append(updates.token_ids)
        self._acknowledge(runs, updates)
        for sequence, chunk in chunks:
            if self._extend_prompt_logprobs(sequence, chunk):
                updates.prompt_logprobs.append(sequence)
        self.acked_step_id = result.step_id
        self.kv.step_acked(result.step_id)
        return updates

    def _read(self, result: StepResult) -> tuple[StepInFlight, SequenceUpdates, list[ScheduledRun]]:
        """What a result brings, of which nothing is applied yet, and the runs of sequences that are still there and did not fail."""
        if not self._in_flight or self._in_flight[0].step_id != result.step_id:
            expected = self._in_flight[0].step_id if self._in_flight else None
            raise StateMismatch(f"result of step {result.step_id} instead of {expected}")
        if result.error:
            raise StepFailed(f"step {result.step_id} failed: {result.error}")
        sent = self._in_flight[0]
        updates = SequenceUpdates(self.description.numerics_id, sent.sent_time, sent.num_tokens, sent.continued)
        updates.failed = self._failed(result)
        failed = {failure.sequence for failure in updates.failed}
        runs = sent.runs
        if sent.num_removals != self._num_removals:
            runs = [run for run in runs if run[0].generation == run[1]]
        if failed:
            runs = [run for run in runs if run[0] not in failed]
        batch = self._batch_of([sequence for sequence, _, _, samples in runs if samples])
        updates.sequences = batch.sequences
        try:
            updates.token_ids = list(map(result.tokens.__getitem__, batch.lanes))
        except KeyError as error:
            raise StateMismatch(f"step {sent.step_id}: no token of lane {error}") from None
        if entries := result.logprobs:
            updates.logprobs = {sequence: entries[sequence.lane] for sequence in updates.sequences if sequence.lane in entries}
        return sent, updates, runs

    def _batch_of(self, sequences: list[Sequence]) -> SampledBatch:
        """Running sequences as a batch, the same one as before if they are the same and were here all the time."""
        if self._batch.sequences != sequences or self._batch_removals != self._num_removals:
            self._batch, self._batch_removals = SampledBatch(sequences, self.description.numerics_id), self._num_removals
        return self._batch

    def _owner(self, lane: int, generation: int) -> Sequence | None:
        """The sequence in a lane, unless the generation is a past one's."""
        sequence = self._lanes[lane] if lane < len(self._lanes) else None
        return sequence if sequence is not None and sequence.generation == generation else None

    def _failed(self, result: StepResult) -> list[FailedSequence]:
        owners = ((self._owner(error.lane, error.generation), error) for error in result.lane_errors)
        return [
            FailedSequence(sequence, _NOTHING_LEFT if error.nothing_to_draw else error.message, error.nothing_to_draw)
            for sequence, error in owners
            if sequence is not None
        ]

    @staticmethod
    def _constrain(updates: SequenceUpdates) -> None:
        """Push the tokens of constrained sequences; a sequence fails whose mask or constraint does not take its token."""
        tokens = list(zip(updates.sequences, updates.token_ids, strict=True))
        for entry in tuple(tokens):
            sequence, token_id = entry
            if sequence.constraint is None:
                continue
            try:
                if not sequence.constraint.mask()[token_id >> 3] >> (token_id & 7) & 1:
                    raise ConstraintViolated(f"the mask excludes {token_id}")
                sequence.constraint.push(token_id)
            except Exception as error:
                tokens.remove(entry)
                updates.failed.append(FailedSequence(sequence, f"token {token_id} breaks the constraint: {error}"))
        updates.sequences, updates.token_ids = [sequence for sequence, _ in tokens], [token_id for _, token_id in tokens]

    def _acknowledge(self, runs: list[ScheduledRun], updates: SequenceUpdates) -> None:
        for sequence, _, num_computed, samples in runs:
            sequence.num_acked_tokens = num_computed
            if num_computed >= sequence.pages.next_publish:
                self.kv.publish(sequence.pages, num_computed)
            if not samples and num_computed == sequence.final_length:
                updates.ended.append((sequence, None))
        for sequence in tuple(self.suspects):
            if sequence.suspicion and sequence.suspicion.is_cleared(sequence.num_acked_tokens, sequence.max_acked_tokens):
                sequence.suspicion = None
                self.suspects.remove(sequence)

    def _extend_prompt_logprobs(self, sequence: Sequence, chunk: PromptLogprobChunk) -> bool:
        """Append what is not known yet; returns whether they became complete."""
        known = sequence.num_prompt_logprobs
        if not sequence.lacks_prompt_logprobs or chunk.first_index > known:
            return False
        entries = chunk.entries[known - chunk.first_index :]
        sequence.prompt_logprobs.append(entries)
        sequence.num_prompt_logprobs += len(entries)
        sequence.numerics_id = self.description.numerics_id
        return not sequence.lacks_prompt_logprobs
