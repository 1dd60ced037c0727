"""The lanes of a fake worker: the rules of the worker protocol without a model, and with a KV cache that knows what it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pypto_serving.wire.columns import NO_PAGE, generation_fields, generation_of, pack_floats, pack_generations, pack_ids, unpack_ids
from pypto_serving.wire.digest import StateDigest
from pypto_serving.worker.v1 import worker_pb2

#: The next token of a sequence, from all tokens before it.
TokenFunction = Callable[[Sequence[int]], int]


def count_up(tokens: Sequence[int]) -> int:
    """The last token plus one, below 1000."""
    return (tokens[-1] + 1) % 1000


@dataclass
class FakeLane:
    """A live sequence."""

    admission: worker_pb2.LaneAdmission
    tokens: list[int]
    num_computed: int
    page_tables: list[list[int]]
    is_ended: bool = False
    prefix_hashes: list[int] = field(default_factory=list)  # of the first 1, 2, ... tokens

    def extend_hashes(self) -> None:
        """Bring the hashes up to the tokens."""
        while len(self.prefix_hashes) < len(self.tokens):
            before = self.prefix_hashes[-1] if self.prefix_hashes else 0
            self.prefix_hashes.append(hash((before, self.tokens[len(self.prefix_hashes)])))


class LaneFault(Exception):
    """The control plane asked for something that breaks a rule."""


class FakeLanes:
    """Applies steps. Every slot of the KV cache remembers which prefix it was written for, so that a page reused too early is found."""

    def __init__(self, max_lanes: int, page_tokens: Sequence[int], vocab_size: int, next_token: TokenFunction) -> None:
        self._page_tokens = page_tokens
        self._vocab_size = vocab_size
        self._next_token = next_token
        self._max_lanes = max_lanes
        self._slots: dict[tuple[int, int, int, int], int] = {}  # partition, group, page, offset -> hash of the prefix
        self.clear()

    def clear(self) -> None:
        """Forget every lane; the KV cache keeps its bytes, as a real one does."""
        self.live: dict[int, FakeLane] = {}
        self.digest = StateDigest(self._max_lanes, len(self._page_tokens))

    def end_all(self) -> None:
        """Take every live lane for one that has ended."""
        for lane in self.live.values():
            lane.is_ended = True

    def run(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """Apply and run a step; a broken rule becomes a step error."""
        result = worker_pb2.StepResult(step_id=step.step_id)
        try:
            self._apply(step)
            chunks = dict(zip(_ids(step.chunk_lanes), _ids(step.chunk_tokens), strict=True))
            sampled = {number: self._run_lane(number, lane, chunks.get(number), result) for number, lane in self.live.items()}
        except LaneFault as fault:
            result.error = str(fault)
            return result
        drawn = {number: token for number, token in sampled.items() if token is not None}
        result.lanes = pack_ids(list(drawn))
        generations = np.array([generation_of(self.live[number].admission) for number in drawn], dtype=np.int64)
        result.generations, result.generations_high = pack_generations(generations)
        result.token_ids = pack_ids(list(drawn.values()))
        if drawn:
            self.digest.append(unpack_ids(result.lanes, "lanes"), unpack_ids(result.token_ids, "token_ids"))
        result.digest = self.digest.value
        return result

    def _apply(self, step: worker_pb2.Step) -> None:
        released = unpack_ids(step.released_lanes, "released_lanes")
        for number in released.tolist():
            _require(self.live.pop(number, None) is not None, f"lane {number} is released and not live")
        self.digest.release(released)
        for admission in step.admissions:
            self._admit(admission)
        for number, group, entries in zip(_ids(step.trimmed_lanes), _ids(step.trimmed_groups), _ids(step.trimmed_entries), strict=True):
            self.live[number].page_tables[group][:entries] = [NO_PAGE] * entries
        if step.trimmed_lanes:
            self.digest.trim(*(unpack_ids(column, "") for column in (step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries)))
        for number, group, page in zip(_ids(step.grown_lanes), _ids(step.grown_groups), _ids(step.grown_pages), strict=True):
            _require(number in self.live, f"lane {number} grows and is not live")
            self.live[number].page_tables[group].append(page)
        if step.grown_lanes:
            self.digest.grow(*(unpack_ids(column, "") for column in (step.grown_lanes, step.grown_groups, step.grown_pages)))

    def _admit(self, admission: worker_pb2.LaneAdmission) -> None:
        number = admission.lane
        _require(number not in self.live, f"lane {number} is admitted and live")
        tokens = _ids(admission.token_ids)
        tables = [_ids(table.page_ids) for table in admission.page_tables]
        _require(len(tables) == len(self._page_tokens), f"lane {number} has {len(tables)} page tables")
        lane = FakeLane(admission, tokens, admission.num_computed_tokens, tables)
        lane.extend_hashes()
        self.live[number] = lane
        pages = [unpack_ids(table.page_ids, "page_ids") for table in admission.page_tables]
        self.digest.admit(number, generation_of(admission), unpack_ids(admission.token_ids, "token_ids"), pages)

    def _run_lane(self, number: int, lane: FakeLane, chunk: int | None, result: worker_pb2.StepResult) -> int | None:
        pending = len(lane.tokens) - lane.num_computed
        count = chunk if chunk is not None else int(pending == 1)
        if lane.is_ended or count == 0:
            return None
        _require(count <= pending, f"lane {number} runs {count} of {pending} tokens")
        for position in range(lane.num_computed, lane.num_computed + count):
            self._write_slots(number, lane, position)
        self._check_slots(number, lane, lane.num_computed)
        _report_prompt(lane, lane.num_computed, lane.num_computed + count, result)
        lane.num_computed += count
        if lane.num_computed < len(lane.tokens) or len(lane.tokens) >= lane.admission.final_length:
            return None
        return self._sample(number, lane, result)

    def _sample(self, number: int, lane: FakeLane, result: worker_pb2.StepResult) -> int:
        end_tokens = set(_ids(lane.admission.end_token_ids))
        token = self._next_token(lane.tokens) % self._vocab_size
        while len(lane.tokens) < lane.admission.min_length and token in end_tokens:
            token = (token + 1) % self._vocab_size
        lane.tokens.append(token)
        lane.extend_hashes()
        lane.is_ended = token in end_tokens or len(lane.tokens) >= lane.admission.final_length
        if lane.admission.sampling.logprobs:
            top_ids, top_values = self._alternatives(token, lane.admission.sampling.top_logprobs)
            result.logprobs.add(lane=number, sampled=-0.5, top_token_ids=pack_ids(top_ids), top_logprobs=pack_floats(top_values))
        return token

    def _alternatives(self, token: int, count: int) -> tuple[list[int], list[float]]:
        return [(token + rank) % self._vocab_size for rank in range(count)], [-0.5 - rank for rank in range(count)]

    def _slot(self, number: int, lane: FakeLane, group: int, position: int) -> tuple[int, int, int, int] | None:
        page_tokens, table = self._page_tokens[group], lane.page_tables[group]
        _require(position // page_tokens < len(table), f"lane {number} has no page for position {position} in group {group}")
        page = table[position // page_tokens]
        return None if page == NO_PAGE else (lane.admission.partition, group, page, position % page_tokens)

    def _write_slots(self, number: int, lane: FakeLane, position: int) -> None:
        for group in range(len(self._page_tokens)):
            slot = self._slot(number, lane, group, position)
            if slot is None:
                raise LaneFault(f"lane {number} writes position {position} outside its window")
            self._slots[slot] = lane.prefix_hashes[position]

    def _check_slots(self, number: int, lane: FakeLane, num_positions: int) -> None:
        for group in range(len(self._page_tokens)):
            for position in range(num_positions):
                slot = self._slot(number, lane, group, position)
                if slot is not None:
                    found = self._slots.get(slot)
                    _require(found == lane.prefix_hashes[position], f"lane {number} reads a foreign token at position {position}")


def _report_prompt(lane: FakeLane, start: int, stop: int, result: worker_pb2.StepResult) -> None:
    admission = lane.admission
    if not admission.sampling.HasField("prompt_logprobs"):
        return
    first, last = max(start, 0) + 1, min(stop + 1, admission.num_prompt_tokens)  # a row tells of the token after it
    if first >= last:
        return
    tokens, count = lane.tokens[first:last], admission.sampling.prompt_logprobs
    result.prompt_logprobs.add(
        lane=admission.lane,
        **generation_fields(generation_of(admission)),
        first_index=first,
        logprobs=pack_floats([-0.5] * len(tokens)),
        top_token_ids=pack_ids([token for token in tokens for _ in range(count)]),
        top_logprobs=pack_floats([-0.5] * (len(tokens) * count)),
    )


def _ids(column: bytes) -> list[int]:
    return unpack_ids(column, "column").tolist()


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise LaneFault(complaint)
