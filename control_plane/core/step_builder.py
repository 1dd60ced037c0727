"""Builds the next step of one worker."""

from control_plane.core.constraint import ConstraintExhausted
from control_plane.core.replica import Replica, ScheduledRun
from control_plane.core.sequence import FailedSequence, Sequence
from control_plane.core.step import LaneAdmission, Step, ids

#: Prompts of many steps that one worker computes at the same time.
_MAX_LONG = 2

#: Tokens that sequences bring along into one step, 4 MiB on the wire: prompts that are cached cost no budget. One may be longer.
_MAX_ADMITTED_TOKENS = 2**20


class StepBuilder:
    """Decodes first, then prefill chunks, then admissions, then what is left of the budget to whoever can use it.

    Prompts that end within two steps of half the budget run one after the other, in order. Those that take longer are few, and leave half
    of what decodes leave while somebody else can use it, so that it does not matter to short ones how many long ones there are.

    Sequences are walked in order and victims are taken from the end of it, so that a victim is never one that this step already runs.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.budget = replica.max_step_tokens
        self._tries_suspects = replica.tries_suspects  # and nobody else; otherwise everybody else
        self.preempted: list[Sequence] = []
        self.failed: list[FailedSequence] = []
        self._runs: list[ScheduledRun] = []
        self._num_long = 0  # prompts of many steps that run
        self._shares: list[tuple[Sequence, int]] = []  # prefilling sequences and what they may run
        self._promised: dict[int, list[int]] = {}  # partition -> pages per group that starved sequences wait for
        self._admissions: list[LaneAdmission] = []
        self._num_admitted_tokens = 0
        self._trimmed_lanes, self._trimmed_groups, self._trimmed_entries = ids(), ids(), ids()
        self._grown_lanes, self._grown_groups, self._grown_pages = ids(), ids(), ids()
        self._chunk_lanes, self._chunk_tokens = ids(), ids()
        self._masks: dict[int, bytes] = {}

    def run_live(self) -> None:
        """Schedule what runs already."""
        prefilling = self._run_decodes()
        if self.replica.suspects and not (prefilling or self._runs):  # whose turn it is has nothing to run
            self._tries_suspects = not self._tries_suspects
            self._chunk_lanes, self._chunk_tokens = ids(), ids()
            prefilling = self._run_decodes()
        long = [sequence for sequence in prefilling if sequence.num_unscheduled_tokens > self.replica.max_step_tokens]
        self._num_long = len(long)
        kept = self.budget // 2 if long else 0  # for long ones, from those that end soon
        self.budget -= kept
        for sequence in prefilling:
            if sequence not in long:
                self._share(sequence, self.budget)
        spare, self.budget = self.budget, kept
        for index, sequence in enumerate(long):
            self._share(sequence, self.budget // (len(long) - index))
        self.budget += spare
        self.replica.starved = bool(self._promised)

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens that run in this step so far."""
        return self.replica.max_step_tokens - self.budget

    @property
    def has_room(self) -> bool:
        """Whether a sequence may be admitted."""
        return self.budget > 0 and self._num_admitted_tokens < _MAX_ADMITTED_TOKENS

    @property
    def accepts_long(self) -> bool:
        """Whether a prompt of many steps may be admitted."""
        return self._num_long < _MAX_LONG

    def accepts(self, is_long: bool) -> bool:
        """Whether a sequence may be admitted in this step; `is_long`: with a prompt of many steps."""
        return self.has_room and (self.accepts_long or not is_long)

    def admit(self, sequence: Sequence, is_long: bool) -> None:
        """Schedule a sequence that was admitted just now, where this step `accepts` it."""
        self._admissions.append(_admission(sequence))
        self._num_admitted_tokens += len(sequence.token_ids)
        if sequence.suspicion and not (self._runs or self._shares or self.replica.num_steps_in_flight):
            self._tries_suspects = True
        if self._sits_out(sequence):
            return
        self._num_long += is_long
        self._share(sequence, (self.budget + 1) // 2 if is_long else self.budget)

    def finish(self, now: float) -> Step | None:
        """Complete the step and note it as sent; None when there is nothing to do."""
        replica = self.replica
        for sequence, share in self._shares:
            self._run_chunk(sequence, share)
        released = replica.pop_released_lanes()
        if not (self._runs or released or self._admissions or self._trimmed_lanes or self._grown_lanes):
            return None
        step = Step(
            step_id=replica.sent_step_id + 1,
            acked_step_id=replica.acked_step_id,
            released_lanes=ids(released),
            admissions=self._admissions,
            trimmed_lanes=self._trimmed_lanes,
            trimmed_groups=self._trimmed_groups,
            trimmed_entries=self._trimmed_entries,
            grown_lanes=self._grown_lanes,
            grown_groups=self._grown_groups,
            grown_pages=self._grown_pages,
            chunk_lanes=self._chunk_lanes,
            chunk_tokens=self._chunk_tokens,
            masks=self._masks,
            num_tokens=self.num_scheduled_tokens,
        )
        replica.tried_suspects = self._tries_suspects
        replica.note_sent(step, self._runs, now)
        return step

    def _run_decodes(self) -> list[Sequence]:
        """Schedule every sequence with one token to run; returns those with more, in order."""
        prefilling = []
        runs, suspects = self._runs, self.replica.suspects
        for sequence in self.replica.running:  # victims are removed behind the one that is looked at
            computed = sequence.num_computed_tokens
            if computed < sequence.plain_until and not suspects:
                sequence.num_computed_tokens = computed = computed + 1
                sequence.num_tokens = computed + 1
                runs.append((sequence, sequence.generation, computed, True))
                continue
            if computed >= sequence.compute_limit:
                continue  # waits for its last results
            if suspects and self._sits_out(sequence):
                continue
            if computed >= sequence.pages.num_slots and not self._make_room(sequence):
                if sequence.num_tokens == computed + 1:
                    self._list_chunk(sequence, 0)
            elif sequence.num_tokens == computed + 1:
                if sequence.constraint is not None and not self._mask(sequence):
                    self._list_chunk(sequence, 0)
                    continue
                sequence.num_computed_tokens = computed = computed + 1
                if samples := computed < sequence.final_length:
                    sequence.num_tokens = computed + 1
                runs.append((sequence, sequence.generation, computed, samples))
                sequence.note_plain()
            else:
                prefilling.append(sequence)
        self.budget -= len(runs)
        return prefilling

    def _sits_out(self, sequence: Sequence) -> bool:
        """Whether this step is one of suspects and the sequence is none, or the other way round; then it runs nothing."""
        if (sequence.suspicion is not None) is self._tries_suspects:
            return False
        if sequence.num_unscheduled_tokens == 1:
            self._list_chunk(sequence, 0)
        return True

    def _list_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """Make a sequence run another number of tokens than the implicit one."""
        self._chunk_lanes.append(sequence.lane)
        self._chunk_tokens.append(num_tokens)

    def _share(self, sequence: Sequence, most: int) -> None:
        num_tokens = min(sequence.num_unscheduled_tokens, most)
        self.budget -= num_tokens
        self._shares.append((sequence, num_tokens))

    def _run_chunk(self, sequence: Sequence, share: int) -> None:
        """Run a share and as much of the budget left as the sequence can use."""
        computed, remaining = sequence.num_computed_tokens, sequence.num_unscheduled_tokens
        wanted = min(remaining, share + self.budget)
        num_tokens = self._reserve(sequence, computed + wanted) - computed
        if sequence.constraint is not None and num_tokens == remaining and not self._mask(sequence):
            num_tokens = remaining - 1
        self.budget -= num_tokens - share
        if num_tokens != (1 if remaining == 1 else 0):
            self._list_chunk(sequence, num_tokens)
        if num_tokens == 0:
            return
        pending = sequence.num_prefill_tokens
        sequence.num_computed_tokens = computed = computed + num_tokens
        if samples := computed == sequence.num_tokens < sequence.final_length:
            sequence.num_tokens += 1
        self.replica.num_pending_tokens += sequence.num_prefill_tokens - pending
        self._runs.append((sequence, sequence.generation, computed, samples))

    def _mask(self, sequence: Sequence) -> bool:
        """Add the mask with which a constrained sequence draws its next token. Without one it cannot run its last token."""
        assert sequence.constraint is not None
        if sequence.num_tokens == sequence.final_length:
            return True  # nothing is drawn
        if sequence.num_tokens > len(sequence.token_ids):
            return False  # the last token is not known yet
        if not sequence.constraint.is_ready:
            return False  # its mask is still being computed
        num_bytes = -(-self.replica.description.vocab_size // 8)
        try:
            allowed = sequence.constraint.mask()
            if len(allowed) != num_bytes:
                raise ValueError(f"{len(allowed)} bytes instead of {num_bytes}")
        except ConstraintExhausted as error:
            self.failed.append(FailedSequence(sequence, f"constraint: {error}", nothing_to_draw=True))
            return False
        except Exception as error:
            self.failed.append(FailedSequence(sequence, f"the constraint gives no mask: {error}"))
            return False
        self._masks[sequence.lane] = allowed
        return True

    # Pages

    def _reserve(self, sequence: Sequence, num_tokens: int) -> int:
        """Get pages for at most `num_tokens` tokens; returns for how many there are some."""
        if num_tokens <= sequence.pages.num_slots:
            return num_tokens
        if sequence.pages.partition in self._promised:
            return sequence.pages.num_slots
        self._trim(sequence)
        kv = self.replica.kv
        self._clear_shared(sequence.pages.partition, kv.shortage(sequence.pages, sequence.num_computed_tokens + 1))
        num_tokens = kv.room(sequence.pages, num_tokens)
        self._grow(sequence, num_tokens)
        return num_tokens

    def _make_room(self, sequence: Sequence) -> bool:
        """Get the page that the next token needs, from the last in the order if need be; else the sequence sits the step out."""
        self._trim(sequence)
        partition, num_tokens = sequence.pages.partition, sequence.num_computed_tokens + 1
        if partition not in self._promised and self._grow(sequence, num_tokens):
            return True
        kv = self.replica.kv
        wanted = kv.shortage(sequence.pages, num_tokens)
        if partition in self._promised:
            wanted = [mine + theirs for mine, theirs in zip(wanted, self._promised[partition], strict=True)]
        self._clear_shared(partition, wanted)
        while not kv.is_available(partition, wanted):
            victim = next(other for other in reversed(self.replica.running) if other.pages.partition == partition)
            if victim is sequence or kv.is_promised(partition, wanted):
                self._promised[partition] = wanted
                return False
            self.replica.remove(victim)
            self.preempted.append(victim)
        return self._grow(sequence, num_tokens)

    def _clear_shared(self, partition: int, num_pages: list[int]) -> None:
        """Drop prompts that are kept for choices to come, before a running sequence lacks their pages."""
        while not self.replica.kv.is_promised(partition, num_pages) and self.replica.drop_shared_prompt(partition):
            pass

    def _trim(self, sequence: Sequence) -> None:
        for group, num_entries in self.replica.kv.trim(sequence.pages, sequence.num_acked_tokens):
            self._trimmed_lanes.append(sequence.lane)
            self._trimmed_groups.append(group)
            self._trimmed_entries.append(num_entries)

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        grown = self.replica.kv.grow(sequence.pages, num_tokens)
        if grown is None:
            return False
        for group, page in grown:
            self._grown_lanes.append(sequence.lane)
            self._grown_groups.append(group)
            self._grown_pages.append(page)
        return True


def _admission(sequence: Sequence) -> LaneAdmission:
    return LaneAdmission(
        lane=sequence.lane,
        generation=sequence.generation,
        token_ids=ids(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        final_length=sequence.final_length,
        min_length=sequence.min_length,
        end_token_ids=ids(sorted(sequence.end_token_ids)),
        page_tables=tuple(map(ids, sequence.pages.tables)),
        partition=sequence.pages.partition,
        sampling=sequence.sampling,
        constrained=sequence.constraint is not None,
        traceparent=sequence.traceparent,
    )
