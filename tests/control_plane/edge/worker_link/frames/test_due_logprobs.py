"""Which log probabilities a step has to bring."""

import pytest
from fakes.lane_admission import admission

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneChunk, Step
from control_plane.edge.worker_link.frames.due_logprobs import DueLogprobs, PromptSpan
from control_plane.edge.worker_link.frames.requests import step_frame
from pypto_serving.wire.columns import unpack_ids

_ASKS = SamplingParams(prompt_logprobs=2)


def _due(tokens, **changes):
    due = DueLogprobs()
    (frame,) = step_frame(Step(1, 0, admissions=[admission(lane=3, tokens=tokens, **{"sampling": _ASKS, **changes})]), 1).step.admissions
    due.admit(frame, unpack_ids(frame.token_ids, "token_ids"))
    return due


def _spans(due, *counts):
    """What a lane tells in steps that run so many tokens of it; None: it is not listed."""
    told = []
    for count in counts:
        due.run(step_frame(Step(1, 0, chunks=[] if count is None else [LaneChunk(3, count)]), 1).step, set())
        told.append(due.prompt_spans.get(3))
    return told


def test_chunks_tell_about_the_tokens_after_them():
    due = _due([5, 6, 7, 8, 9])
    assert _spans(due, 2, None, 0, 1, None) == [PromptSpan(1, 1, [6, 7], 2), None, None, PromptSpan(1, 3, [8], 2), None]
    assert _spans(due, 1, None) == [PromptSpan(1, 4, [9], 2), None]


def test_a_last_token_that_runs_unlisted_tells_about_none():
    assert _spans(_due([5, 6]), 1, None) == [PromptSpan(1, 1, [6], 2), None]
    assert _spans(_due([5]), None) == [None]


def test_a_resumed_lane_tells_about_its_prompt_only():
    assert _spans(_due([5, 6, 7, 8], num_prompt_tokens=2), 4) == [PromptSpan(1, 1, [6], 2)]
    assert _spans(_due([5, 6, 7, 8], num_prompt_tokens=2, num_computed_tokens=1), 3) == [None]


def test_a_lane_that_failed_is_excused_and_then_silent():
    due = _due([5, 6, 7])
    due.run(step_frame(Step(1, 0, chunks=[LaneChunk(3, 1)]), 1).step, {3})
    assert due.prompt_spans[3].token_ids == [6] and due.excused_lanes == {3}
    assert _spans(due, 1) == [None]


@pytest.mark.parametrize("forget", [lambda due: due.clear(), lambda due: due.release([3])])
def test_forgotten_lanes_owe_nothing(forget):
    due = _due([5, 6, 7], sampling=SamplingParams(logprobs=True, top_logprobs=4, prompt_logprobs=0))
    assert dict(due.num_alternatives) == {3: 4}
    forget(due)
    assert not due.num_alternatives and _spans(due, 2) == [None]
