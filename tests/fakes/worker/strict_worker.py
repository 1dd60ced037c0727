"""A worker in the engine's process that keeps the rules of worker.proto strictly, and asserts that the engine keeps them too.

Tokens are a pure function of the tokens before them. The KV cache is simulated: a slot remembers for which tokens it was written, and
every slot that a query would read is checked, so that a page used by two sequences or given away too early is found.
"""

from collections import deque
from dataclasses import dataclass

from control_plane.core.step import (
    NO_PAGE,
    CacheGroup,
    LaneAdmission,
    LaneError,
    PromptLogprobChunk,
    Step,
    StepResult,
    TokenLogprob,
    WorkerDescription,
)
from control_plane.engine.ports import WorkerEvents

VOCAB_SIZE = 97


def describe(**changes) -> WorkerDescription:
    """A small worker; `groups` as (page_tokens, num_pages, window) in short."""
    groups = changes.pop("groups", [(4, 64, None)])
    fields = {
        "address": "worker:1",
        "incarnation": "a",
        "epoch": 1,
        "numerics_id": "fake",
        "vocab_size": VOCAB_SIZE,
        "max_model_len": 4096,
        "max_lanes": 32,
        "max_step_tokens": 64,
        "max_steps_in_flight": 2,
        "lease_seconds": 10.0,
        "num_partitions": 1,
        "cache_groups": tuple(CacheGroup(size, num, window) for size, num, window in groups),
    }
    return WorkerDescription(**{**fields, **changes})


def identify(parent: int, token_id: int) -> int:
    """Identity of a token with everything before it."""
    return hash((parent, token_id)) & (2**61 - 1)


def next_token(token_ids, end_token_ids=frozenset(), min_length: int = 0, seed: int = 0, allowed: bytes | None = None) -> int | None:
    """The token that the fake model generates after `token_ids`; `allowed` is a mask. None: all are excluded."""
    identity = seed
    for token_id in token_ids:
        identity = identify(identity, token_id)
    banned = end_token_ids if len(token_ids) < min_length else ()
    candidates = (token % VOCAB_SIZE for token in range(identity % VOCAB_SIZE, 2 * VOCAB_SIZE))
    free = (token for token in candidates if token not in banned and (allowed is None or allowed[token // 8] >> token % 8 & 1))
    return next(free, None)


def solo(prompt, max_tokens: int, end_token_ids=frozenset(), min_tokens: int = 0, seed: int = 0, constraint=None) -> list[int]:
    """What a request generates when nothing disturbs it."""
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + max_tokens:
        ended = len(token_ids) >= len(prompt) + min_tokens
        allowed = constraint.mask() if constraint else None
        token_ids.append(next_token(token_ids, end_token_ids, len(prompt) + min_tokens, seed, allowed))
        if constraint:
            constraint.push(token_ids[-1])
        if ended and token_ids[-1] in end_token_ids:
            break
    return token_ids[len(prompt) :]


def prompt_logprob(token_ids, index: int) -> float:
    """Log probability that the fake model reports for the prompt token at `index`."""
    token_id = next_token(token_ids[:index])
    assert token_id is not None
    return -1.0 - token_id


Key = tuple[int, int, int]  # group, partition, page


class FenceWitness:
    """Sees every step when it is sent: no page may be gained for writing that a lane had in a step whose result was not told yet."""

    def __init__(self, groups) -> None:
        self._groups = groups
        self._tables: dict[int, tuple[int, list[list[int]]]] = {}  # lane -> partition, page tables
        self._touched: dict[Key, int] = {}  # last step sent in which a lane had the page

    def see(self, step: Step, told_step_id: int) -> None:
        gained: list[Key] = []
        for lane in step.released_lanes:
            del self._tables[lane]
        for admission in step.admissions:
            self._tables[admission.lane] = (admission.partition, [list(table) for table in admission.page_tables])
            gained += self._written(admission)
        for lane, group, entries in _trims(step):
            self._tables[lane][1][group][:entries] = [NO_PAGE] * entries
        for lane, group, page in _growths(step):
            partition, tables = self._tables[lane]
            tables[group].append(page)
            gained.append((group, partition, page))
        held = [key for partition, tables in self._tables.values() for key in _keys(partition, tables)]
        for key in gained:
            assert self._touched.get(key, 0) <= told_step_id, f"page {key} is reused before its last step is acknowledged"
            assert held.count(key) == 1, f"page {key} is to be written and has two owners"
        self._touched.update(dict.fromkeys(held, step.step_id))

    def _written(self, admission: LaneAdmission):
        for group, (table, spec) in enumerate(zip(admission.page_tables, self._groups, strict=True)):
            assert admission.num_computed_tokens % spec.page_tokens == 0, "only full pages are shared"
            for page in table[admission.num_computed_tokens // spec.page_tokens :]:
                yield group, admission.partition, page


def chunks_of(step: Step) -> list[tuple[int, int]]:
    """The lane and the number of tokens of every chunk that a step lists."""
    return list(zip(step.chunk_lanes, step.chunk_tokens, strict=True))


def _trims(step: Step):
    return zip(step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries, strict=True)


def _growths(step: Step):
    return zip(step.grown_lanes, step.grown_groups, step.grown_pages, strict=True)


def _keys(partition: int, tables: list[list[int]]) -> list[Key]:
    return [(group, partition, page) for group, table in enumerate(tables) for page in table if page != NO_PAGE]


@dataclass
class StrictLane:
    """A live sequence on the worker."""

    admission: LaneAdmission
    token_ids: list[int]
    num_computed: int
    tables: list[list[int]]
    ended: bool = False

    @property
    def num_waiting(self) -> int:
        return 0 if self.ended else len(self.token_ids) - self.num_computed


class StrictWorker:
    """Implements ports.Worker. `run_step` executes the oldest step and tells the result; nothing happens by itself."""

    def __init__(self, events: WorkerEvents, description: WorkerDescription | None = None) -> None:
        self.description = description or describe()
        self.events = events
        self.steps: deque[Step] = deque()
        self.history: list[Step] = []
        self.lost = False
        self.resetting = False
        self.num_resets = 0
        self.broken_rules: list[AssertionError] = []
        self.failing = ""  # why steps fail as a whole
        self.failing_lanes: dict[int, str] = {}
        self._last_step_id = 0
        self._told_step_id = 0
        self._generations: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        self.steps.clear()
        self.lanes: dict[int, StrictLane] = {}
        self._kv: dict[tuple[int, int, int, int], int] = {}
        self._witness = FenceWitness(self.description.cache_groups)

    # Session

    def submit(self, step: Step) -> None:
        try:
            self._check_and_queue(step)
        except AssertionError as error:
            self.broken_rules.append(error)  # the engine would swallow it

    def _check_and_queue(self, step: Step) -> None:
        assert not self.lost and not self.resetting
        assert step.step_id > self._last_step_id
        assert len(self.steps) < self.description.max_steps_in_flight, "more steps in flight than the worker allows"
        self._last_step_id = step.step_id
        self._witness.see(step, self._told_step_id)
        self.steps.append(step)
        self.history.append(step)

    def reset(self, blame: str = "") -> None:
        assert not self.lost
        self._forget()
        self.failing = ""
        self.num_resets += 1
        self.resetting = True

    def finish_reset(self) -> None:
        self.resetting = False
        self.events.reset_done(self)

    def lose(self) -> None:
        self.lost = True
        self.events.worker_lost(self, "gone")

    def run_step(self) -> StepResult:
        """Execute the oldest step and tell its result."""
        step = self.steps.popleft()
        error = self.failing  # after a failed step nothing works until the reset
        result = StepResult(step.step_id, error=error) if error else self._execute(step)
        self._told_step_id = step.step_id
        self.events.step_done(self, result)
        return result

    # Execution

    def _execute(self, step: Step) -> StepResult:
        for lane in step.released_lanes:
            del self.lanes[lane]
        for admission in step.admissions:
            self._admit(admission)
        for lane, group, entries in _trims(step):
            table = self.lanes[lane].tables[group]
            assert entries <= len(table)
            table[:entries] = [NO_PAGE] * entries
        for lane, group, page in _growths(step):
            assert 0 <= page < self.description.cache_groups[group].num_pages
            self.lanes[lane].tables[group].append(page)
        return self._run(step)

    def _admit(self, admission: LaneAdmission) -> None:
        assert 0 <= admission.lane < self.description.max_lanes
        assert admission.lane not in self.lanes, "the lane is not free"
        assert admission.generation > self._generations.get(admission.lane, 0)
        assert 0 <= admission.num_computed_tokens < len(admission.token_ids) <= admission.final_length
        assert 0 <= admission.partition < self.description.num_partitions
        self._generations[admission.lane] = admission.generation
        tables = [list(table) for table in admission.page_tables]
        self.lanes[admission.lane] = StrictLane(admission, list(admission.token_ids), admission.num_computed_tokens, tables)

    def _run(self, step: Step) -> StepResult:
        chunks, masks = dict(chunks_of(step)), step.masks
        assert len(chunks) == len(step.chunk_lanes)
        plan = {number: chunks.get(number, 1 if lane.num_waiting == 1 else 0) for number, lane in self.lanes.items()}
        assert chunks.keys() <= plan.keys()
        num_tokens, sampled, told, errors = 0, [], [], []
        for number, num in plan.items():
            lane = self.lanes[number]
            num = 0 if lane.ended else num
            assert num <= lane.num_waiting, "a chunk runs past the known tokens"
            if number in self.failing_lanes and num and num == lane.num_waiting:  # only a lane that draws can fail
                lane.ended = True
                errors.append(LaneError(number, lane.admission.generation, self.failing_lanes.pop(number)))
                continue
            num_tokens += num
            if num:
                told += self._compute(number, lane, num)
                for token in self._sample(number, lane, masks.get(number)):
                    errors.append(token) if isinstance(token, LaneError) else sampled.append(token)
        assert num_tokens <= step.num_tokens <= self.description.max_step_tokens
        drawing = {lane for lane, *_ in sampled} | {error.lane for error in errors}
        assert {lane for lane in drawing if self.lanes[lane].admission.constrained} >= masks.keys(), "a mask of a lane that draws nothing"
        return StepResult(
            step.step_id,
            tokens={lane: token_id for lane, _, token_id in sampled},
            logprobs={lane: TokenLogprob(token_id, -0.5) for lane, _, token_id in sampled if self._wants_logprobs(lane)},
            prompt_logprobs=told,
            lane_errors=errors,
            device_seconds=0.001,
        )

    def _wants_logprobs(self, lane: int) -> bool:
        return self.lanes[lane].admission.sampling.logprobs

    def _compute(self, number: int, lane: StrictLane, num: int) -> list[PromptLogprobChunk]:
        start, end = lane.num_computed, lane.num_computed + num
        identities = [0]
        for token_id in lane.token_ids[:end]:
            identities.append(identify(identities[-1], token_id))
        for group, spec in enumerate(self.description.cache_groups):
            self._check_reads(lane, group, spec, identities, start)
            for position in range(start, end):
                self._kv[self._slot(lane, group, spec, position)] = identities[position + 1]
        lane.num_computed = end
        indices = range(start + 1, min(end + 1, lane.admission.num_prompt_tokens))
        if lane.admission.sampling.prompt_logprobs is None or not indices:
            return []
        entries = tuple(TokenLogprob(lane.token_ids[i], prompt_logprob(lane.token_ids, i)) for i in indices)
        return [PromptLogprobChunk(number, lane.admission.generation, indices[0], entries)]

    def _check_reads(self, lane: StrictLane, group: int, spec: CacheGroup, identities: list[int], start: int) -> None:
        first = 0 if spec.window_tokens is None else max(0, start - spec.window_tokens)
        for position in range(first, start):
            found = self._kv.get(self._slot(lane, group, spec, position))
            assert found == identities[position + 1], f"position {position} of {lane.admission} reads the KV of somebody else"

    def _slot(self, lane: StrictLane, group: int, spec: CacheGroup, position: int) -> tuple[int, int, int, int]:
        page = lane.tables[group][position // spec.page_tokens]
        assert page != NO_PAGE, "the page left the window too early"
        return group, lane.admission.partition, page, position % spec.page_tokens

    def _sample(self, number: int, lane: StrictLane, allowed: bytes | None) -> list[tuple[int, int, int] | LaneError]:
        admission = lane.admission
        if lane.num_computed < len(lane.token_ids) or len(lane.token_ids) == admission.final_length:
            return []
        assert admission.constrained == (allowed is not None), "a constrained lane draws with a mask, and no other"
        token_id = next_token(lane.token_ids, set(admission.end_token_ids), admission.min_length, admission.sampling.seed, allowed)
        if token_id is None:
            lane.ended = True
            return [LaneError(number, admission.generation, "no token can be drawn", nothing_to_draw=True)]
        may_end = len(lane.token_ids) >= admission.min_length
        lane.token_ids.append(token_id)
        lane.ended = len(lane.token_ids) == admission.final_length or (may_end and token_id in admission.end_token_ids)
        return [(number, admission.generation, token_id)]
