"""Builders of worker steps, and a client that keeps a runner busy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.runner import ModelRunner
from worker.step import LaneAdmission, LaneSampling, StepInput, StepOutput

_COLUMNS = ("released_lanes", "trimmed_lanes", "trimmed_groups", "trimmed_entries", "grown_lanes", "grown_groups", "grown_pages")


def ids(*values: int) -> Ids:
    """A column."""
    return np.array(values, dtype=np.uint32)


def admission(lane: int = 0, token_ids: Sequence[int] = (1, 2, 3), **fields: Any) -> LaneAdmission:
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


def step(step_id: int = 1, chunks: dict[int, int] | None = None, **fields: Any) -> StepInput:
    """A step; columns may be given as lists, chunks as {lane: tokens}."""
    columns = {name: ids(*fields.pop(name)) for name in _COLUMNS if name in fields}
    chunks = chunks or {}
    return StepInput(step_id, chunk_lanes=ids(*chunks), chunk_tokens=ids(*chunks.values()), **columns, **fields)


def drawn(output: StepOutput) -> dict[int, int]:
    """Tokens by lane."""
    return dict(zip(output.lanes.tolist(), output.token_ids.tolist(), strict=True))


class Lane:
    """A sequence that a client has in a lane of a runner."""

    def __init__(self, request: LaneAdmission, chunk_tokens: int) -> None:
        self.admission = request
        self.token_ids = request.token_ids.tolist()
        self.num_computed = request.num_computed_tokens
        self.chunk_tokens = chunk_tokens

    @property
    def num_generated(self) -> int:
        """Tokens drawn so far."""
        return len(self.token_ids) - self.admission.num_prompt_tokens

    def next_chunk(self) -> int:
        """Tokens that run next."""
        return min(len(self.token_ids) - self.num_computed, self.chunk_tokens)


def generate(runner: ModelRunner, admissions: Sequence[LaneAdmission], chunk_tokens: int = 1000) -> dict[int, list[int]]:
    """Run all lanes to their final lengths, chunk by chunk; returns what each drew."""
    lanes = {request.lane: Lane(request, chunk_tokens) for request in admissions}
    waiting, step_id = list(admissions), 0
    while any(len(lane.token_ids) < lane.admission.final_length for lane in lanes.values()):
        step_id += 1
        live = [lane for lane in lanes.values() if len(lane.token_ids) < lane.admission.final_length]
        chunks = {lane.admission.lane: lane.next_chunk() for lane in live}
        output = runner.execute(step(step_id, chunks, admissions=waiting))
        waiting = []
        for lane in live:
            lane.num_computed += chunks[lane.admission.lane]
        for number, token_id in drawn(output).items():
            lanes[number].token_ids.append(token_id)
    runner.execute(step(step_id + 1, released_lanes=list(lanes)))
    return {number: lane.token_ids[lane.admission.num_prompt_tokens :] for number, lane in lanes.items()}
