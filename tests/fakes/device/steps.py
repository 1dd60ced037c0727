"""Builders of worker steps, and a client that keeps a runner busy."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.runner import ModelRunner, PendingStep
from worker.step import LaneAdmission, LaneSampling, Step, StepResult

_COLUMNS = ("released_lanes", "trimmed_lanes", "trimmed_groups", "trimmed_entries", "grown_lanes", "grown_groups", "grown_pages")


def ids(*values: int) -> Ids:
    """A column."""
    return np.array(values, dtype=np.uint32)


def worker_admission(lane: int = 0, token_ids: Sequence[int] = (1, 2, 3), **fields: Any) -> LaneAdmission:
    """An admission of a prompt that may grow by 8 tokens, with pages 0.. for them in one cache group with pages of 4 tokens."""
    defaults = {
        "generation": 0,
        "num_prompt_tokens": len(token_ids),
        "num_computed_tokens": 0,
        "final_length": len(token_ids) + 8,
        "min_length": 0,
        "end_token_ids": ids(),
        "page_tables": [ids(*range(-(-(len(token_ids) + 8) // 4)))],
        "partition": 0,
        "sampling": LaneSampling(),
    }
    return LaneAdmission(lane=lane, token_ids=ids(*token_ids), **{**defaults, **fields})


def step(step_id: int = 1, chunks: dict[int, int] | None = None, **fields: Any) -> Step:
    """A step; columns may be given as lists, chunks as {lane: tokens}."""
    columns: dict[str, Any] = {name: ids(*fields.pop(name)) for name in _COLUMNS if name in fields}
    chunks = chunks or {}
    return Step(step_id, chunk_lanes=ids(*chunks), chunk_tokens=ids(*chunks.values()), **columns, **fields)


def drawn(output: StepResult) -> dict[int, int]:
    """Tokens by lane."""
    return dict(zip(output.lanes.tolist(), output.token_ids.tolist(), strict=True))


class LaneClient:
    """A sequence that a client has in a lane of a runner. It counts tokens that are drawn before it knows them."""

    def __init__(self, request: LaneAdmission, chunk_tokens: int) -> None:
        self.admission = request
        self.num_tokens = len(request.token_ids)
        self.num_computed = request.num_computed_tokens
        self.chunk_tokens = chunk_tokens
        self.token_ids = request.token_ids.tolist()

    @property
    def is_live(self) -> bool:
        """Whether tokens are still to be drawn."""
        return self.num_tokens < self.admission.final_length

    def run(self) -> int:
        """Run the next chunk; returns its tokens."""
        count = min(self.num_tokens - self.num_computed, self.chunk_tokens)
        self.num_computed += count
        self.num_tokens += self.num_computed == self.num_tokens
        return count


def generate(
    runner: ModelRunner,
    admissions: Sequence[LaneAdmission],
    chunk_tokens: int = 1000,
    observe: Callable[[StepResult], None] | None = None,
    steps_in_flight: int = 1,
) -> dict[int, list[int]]:
    """Run all lanes to their final lengths, chunk by chunk, then release them; returns the generated tokens of each."""
    lanes = {request.lane: LaneClient(request, chunk_tokens) for request in admissions}
    waiting, pending, step_id = list(admissions), deque[PendingStep](), 0

    def collect() -> None:
        output = runner.collect(pending.popleft())
        if observe is not None:
            observe(output)
        for number, token_id in drawn(output).items():
            lanes[number].token_ids.append(token_id)

    while live := [lane for lane in lanes.values() if lane.is_live]:
        step_id += 1
        pending.append(runner.launch(step(step_id, {lane.admission.lane: lane.run() for lane in live}, admissions=waiting)))
        waiting = []
        if len(pending) == steps_in_flight:
            collect()
    pending.append(runner.launch(step(step_id + 1, released_lanes=list(lanes))))
    while pending:
        collect()
    return {number: lane.token_ids[lane.admission.num_prompt_tokens :] for number, lane in lanes.items()}
