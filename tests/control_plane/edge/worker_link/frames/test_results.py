"""Reading of results: what fits is taken, all else is refused by name."""

import pytest
from fakes.control_plane.core_admission import core_admission
from fakes.worker.fake_lanes import FakeLanes, count_up
from fakes.worker.strict_worker import describe

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneError, PackedLogprobs, Step, TokenLogprob
from control_plane.edge.worker_link.frames.mirror import LaneMirror
from control_plane.edge.worker_link.frames.requests import step_frame
from control_plane.edge.worker_link.frames.results import DueLogprobs, PromptSpan
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import pack_floats, pack_ids
from pypto_serving.worker.v1 import worker_pb2

_LIMITS = describe(max_lanes=4, vocab_size=10)
#: Lanes 0 and 1 sample 6; lane 1 reports it, and lane 2 reports tokens 6 and 7 of its prompt.
_STEP = Step(
    step_id=1,
    acked_step_id=0,
    admissions=[
        core_admission(lane=0),
        core_admission(lane=1, sampling=SamplingParams(logprobs=True, top_logprobs=1)),
        core_admission(lane=2, tokens=(5, 6, 7, 8), sampling=SamplingParams(prompt_logprobs=1)),
    ],
    chunk_lanes=[2],
    chunk_tokens=[2],
)


def _result(**changes):
    """The right answer to the step; `changes` replaces fields, columns as lists of numbers."""
    result = FakeLanes(4, [4], 10, count_up).run(step_frame(_STEP, epoch=1).step)
    for field, value in changes.items():
        result.ClearField(field)
        if field in ("lanes", "generations", "token_ids") and isinstance(value, list):
            value = pack_ids(value)
        result.MergeFrom(worker_pb2.StepResult(**{field: value}))
    return result


def _logprobs(lane=1, sampled=-1.0, top_ids=(7,), top=(-1.0,)):
    return worker_pb2.TokenLogprobs(lane=lane, sampled=sampled, top_token_ids=pack_ids(top_ids), top_logprobs=pack_floats(top))


def _prompt(lane=2, generation=1, first_index=1, logprobs=(-1.0, -2.0), top_ids=(3, 4), top=(-0.5, -0.5)):
    columns = {"logprobs": pack_floats(logprobs), "top_token_ids": pack_ids(top_ids), "top_logprobs": pack_floats(top)}
    return worker_pb2.PromptTokenLogprobs(lane=lane, generation=generation, first_index=first_index, **columns)


def _read(message):
    return LaneMirror(_LIMITS).follow(_STEP, message)


def test_a_right_result_is_taken():
    result = _read(_result(device_us=1500, idle_us=20, logprobs=[_logprobs()], prompt_logprobs=[_prompt()]))
    assert result.tokens == {0: 6, 1: 6}
    assert (result.device_seconds, result.idle_seconds) == (0.0015, 0.00002)
    assert result.logprobs == {1: TokenLogprob(6, -1.0, ((7, -1.0),))}
    assert isinstance(result.prompt_logprobs[0].entries, PackedLogprobs)  # a prompt may have a million of them
    assert tuple(result.prompt_logprobs[0].entries) == (TokenLogprob(6, -1.0, ((3, -0.5),)), TokenLogprob(7, -2.0, ((4, -0.5),)))


def test_lane_errors_say_whose_fault_they_are():
    errors = [worker_pb2.LaneError(lane=1, generation=2, message="m", nothing_to_draw=ours) for ours in (False, True)]
    assert _read(_result(lane_errors=errors)).lane_errors == [LaneError(1, 2, "m", False), LaneError(1, 2, "m", True)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lanes": [0]}, "lanes 1, generations 2, token_ids 2"),
        ({"lanes": [0, 4]}, "lanes: 4 is not below 4"),
        ({"lanes": [1, 1]}, "twice"),
        ({"generations": [1, 5]}, "lane 1 is not live in generation 5"),
        ({"token_ids": [7, 10]}, "token_ids: 10 is not below 10"),
        ({"lanes": b"\x00"}, "lanes: 1 bytes"),
        ({"lanes": [0, 1, 2, 3, 4], "generations": [1] * 5, "token_ids": [1] * 5}, r"lanes \(number\): 5, must be from 0 to 4"),
        ({"digest": 5}, "the digests differ"),
        ({"lane_errors": [worker_pb2.LaneError()] * 5}, r"lane_errors \(number\): 5, must be from 0 to 4"),
        ({"logprobs": []}, "logprobs: missing for lane 1"),
        ({"logprobs": [_logprobs(lane=0)]}, "logprobs: nothing is due of lane 0"),
        ({"logprobs": [_logprobs()] * 2}, "logprobs: nothing is due of lane 1"),
        ({"logprobs": [_logprobs(sampled=float("nan"))]}, "nan of lane 1 is not finite"),
        ({"logprobs": [_logprobs(top_ids=[10])]}, "top_token_ids: 10 is not below 10"),
        ({"logprobs": [_logprobs(top=[float("inf")])]}, "top_logprobs: inf is not finite"),
        ({"logprobs": [_logprobs(top=[])]}, "4 and 0 bytes, 4 each are due"),
        ({"logprobs": [_logprobs(top_ids=[1, 2], top=[-1.0, -1.0])]}, "8 and 8 bytes, 4 each are due"),
        ({"prompt_logprobs": []}, "prompt_logprobs: missing for lane 2"),
        ({"prompt_logprobs": [_prompt(lane=1)]}, "prompt_logprobs: nothing is due of lane 1"),
        ({"prompt_logprobs": [_prompt()] * 2}, "prompt_logprobs: nothing is due of lane 2"),
        ({"prompt_logprobs": [_prompt(generation=2)]}, "2 tokens from 1 on of generation 2, due are 2 from 1 on of 1"),
        ({"prompt_logprobs": [_prompt(first_index=2)]}, "2 tokens from 2 on of generation 1, due are"),
        ({"prompt_logprobs": [_prompt(logprobs=[-1.0])]}, "1 tokens from 1 on"),
        ({"prompt_logprobs": [_prompt(top_ids=[1], top=[-1.0])]}, "4 and 4 bytes, 8 each are due"),
        ({"prompt_logprobs": [worker_pb2.PromptTokenLogprobs(lane=2, logprobs=b"123")]}, "3 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(changes, complaint):
    with pytest.raises(FrameError, match=complaint):
        _read(_result(**changes))


def test_a_lane_that_failed_may_tell_nothing():
    error = worker_pb2.LaneError(lane=2, generation=1, message="not finite")
    assert _read(_result(prompt_logprobs=[], lane_errors=[error])).prompt_logprobs == []
    error.generation = 2
    with pytest.raises(FrameError, match="missing for lane 2"):
        _read(_result(prompt_logprobs=[], lane_errors=[error]))


def test_endless_complaints_are_cut():
    errors = [worker_pb2.LaneError(lane=0, generation=1, message="y" * 5000)]
    assert len(_read(_result(error="x" * 5000)).error) == len(_read(_result(lane_errors=errors)).lane_errors[0].message) == 1000


def test_mirror_is_back_at_nothing_when_all_is_released():
    mirror = LaneMirror(_LIMITS)
    mirror.follow(_STEP, _result())
    released = Step(2, 1, released_lanes=[1, 0, 2])
    assert mirror.follow(released, worker_pb2.StepResult(step_id=2, digest=0)).tokens == {}


# Which log probabilities a step has to bring

_ASKS = SamplingParams(prompt_logprobs=2)


def _due(tokens, **changes):
    due = DueLogprobs()
    due.admit(core_admission(lane=3, tokens=tokens, **{"sampling": _ASKS, **changes}))
    return due


def _spans(due, *counts):
    """What a lane reports in steps that run so many tokens of it; None: it is not listed."""
    reported = []
    for count in counts:
        chunks = {} if count is None else {"chunk_lanes": [3], "chunk_tokens": [count]}
        due.run(Step(1, 0, **chunks), set())
        reported.append(due.prompt_spans.get(3))
    return reported


def test_chunks_report_the_tokens_after_them():
    due = _due([5, 6, 7, 8, 9])
    assert _spans(due, 2, None, 0, 1, None) == [PromptSpan(1, 1, [6, 7], 2), None, None, PromptSpan(1, 3, [8], 2), None]
    assert _spans(due, 1, None) == [PromptSpan(1, 4, [9], 2), None]


def test_a_last_token_that_runs_unlisted_reports_none():
    assert _spans(_due([5, 6]), 1, None) == [PromptSpan(1, 1, [6], 2), None]
    assert _spans(_due([5]), None) == [None]


def test_a_resumed_lane_reports_its_prompt_only():
    assert _spans(_due([5, 6, 7, 8], num_prompt_tokens=2), 4) == [PromptSpan(1, 1, [6], 2)]
    assert _spans(_due([5, 6, 7, 8], num_prompt_tokens=2, num_computed_tokens=1), 3) == [None]


def test_a_lane_that_failed_is_excused_and_then_silent():
    due = _due([5, 6, 7])
    due.run(Step(1, 0, chunk_lanes=[3], chunk_tokens=[1]), {3})
    assert due.prompt_spans[3].token_ids == [6] and due.excused_lanes == {3}
    assert _spans(due, 1) == [None]


@pytest.mark.parametrize("forget", [lambda due: due.clear(), lambda due: due.release([3])])
def test_forgotten_lanes_owe_nothing(forget):
    due = _due([5, 6, 7], sampling=SamplingParams(logprobs=True, top_logprobs=4, prompt_logprobs=0))
    assert dict(due.num_alternatives) == {3: 4}
    forget(due)
    assert not due.num_alternatives and _spans(due, 2) == [None]
