"""The steps that a runner executes before it serves."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.step import CacheGroup, LaneAdmission, LaneSampling, RunnerLimits, Step, StepResult

_MAX_LANES = 8
_SAMPLING = (
    LaneSampling(),
    LaneSampling(
        temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=True, top_logprobs=5
    ),
    LaneSampling(temperature=1.0),
)


def warm_up_steps(limits: RunnerLimits, groups: Sequence[CacheGroup], share: int = 1) -> Sequence[Step]:
    """One step that prefills beside short prompts one of 1/`share` of the longest, and one that decodes."""
    # The second step computes one token more than the prompt: all lanes but the first get pages for two tokens.
    pages_of_short = [_num_pages(min(2, limits.max_model_len), group) for group in groups]
    most_lanes = min(group.num_pages // short for group, short in zip(groups, pages_of_short, strict=True))
    num_lanes = max(1, min(_MAX_LANES, limits.max_lanes, limits.max_step_tokens, most_lanes))
    room = min((group.num_pages - (num_lanes - 1) * short) * group.page_tokens for group, short in zip(groups, pages_of_short, strict=True))
    longest = max(1, min(limits.max_step_tokens // share - num_lanes + 1, limits.max_model_len - 1, room - 1))
    bounded = replace(limits, max_model_len=min(limits.max_model_len, room + 1))
    pages_of_first = [_num_pages(min(longest + 1, limits.max_model_len, room), group) for group in groups]
    tables = [list(map(partial(_pages, lane), pages_of_first, pages_of_short)) for lane in range(num_lanes)]
    lanes = np.arange(num_lanes, dtype=np.uint32)
    lengths = np.where(lanes == 0, longest, 1).astype(np.uint32)
    admissions = [_admission(bounded, lane, int(lengths[lane]), tables[lane]) for lane in range(num_lanes)]
    return Step(1, admissions=admissions, chunk_lanes=lanes, chunk_tokens=lengths), Step(2)


def check_warm_up(result: StepResult) -> None:
    """Raise RuntimeError when a step of the warm-up did not produce its tokens."""
    if result.lane_errors:
        raise RuntimeError(f"the model produces no token in the warm-up: {result.lane_errors[0].message}")


def _num_pages(num_tokens: int, group: CacheGroup) -> int:
    return -(-num_tokens // group.page_tokens)


def _pages(lane: int, of_first: int, of_short: int) -> Ids:
    """The pages of `lane`: those of the first come first."""
    first, count = (0, of_first) if lane == 0 else (of_first + (lane - 1) * of_short, of_short)
    return np.arange(first, first + count, dtype=np.uint32)


def _admission(limits: RunnerLimits, lane: int, num_tokens: int, page_tables: Sequence[Ids]) -> LaneAdmission:
    return LaneAdmission(
        lane=lane,
        generation=0,
        token_ids=np.arange(num_tokens, dtype=np.uint32) % np.uint32(limits.vocab_size),
        num_prompt_tokens=num_tokens,
        num_computed_tokens=0,
        final_length=min(num_tokens + 2, limits.max_model_len),
        min_length=0,
        end_token_ids=np.empty(0, dtype=np.uint32),
        page_tables=page_tables,
        partition=0,
        sampling=_SAMPLING[lane % len(_SAMPLING)],
    )
