"""Reading of results: what fits is taken, all else is refused by name."""

import pytest
from fakes.engine_worker import describe
from fakes.lane_admission import admission

from control_plane.core.step import LaneError, Step
from control_plane.edge.worker_link.frames.frame_error import FrameError
from control_plane.edge.worker_link.frames.mirror import LaneMirror
from control_plane.edge.worker_link.frames.requests import step_frame
from control_plane.edge.worker_link.frames.results import sampled_columns, step_result
from pypto_serving.wire.columns import pack_floats, pack_ids
from pypto_serving.worker.v1 import worker_pb2

_LIMITS = describe(max_lanes=4, vocab_size=10)


def _result(lanes=(0, 1), generations=(1, 1), token_ids=(7, 8), **fields) -> worker_pb2.StepResult:
    columns = {"lanes": pack_ids(lanes), "generations": pack_ids(generations), "token_ids": pack_ids(token_ids)}
    return worker_pb2.StepResult(step_id=1, **columns, **fields)


def _alternatives(token_ids, logprobs):
    return worker_pb2.TokenLogprobs(lane=0, top_token_ids=pack_ids(token_ids), top_logprobs=pack_floats(logprobs))


def _read(message, prompts=None):
    return step_result(message, sampled_columns(message, _LIMITS), prompts or {2: [5]}, _LIMITS)


def test_times_become_seconds():
    result = _read(_result(device_us=1500, idle_us=20))
    assert (result.device_seconds, result.idle_seconds) == (0.0015, 0.00002)


def test_lane_errors_say_whose_fault_they_are():
    errors = [worker_pb2.LaneError(lane=1, generation=2, message="m", nothing_to_draw=ours) for ours in (False, True)]
    assert _read(_result(lane_errors=errors)).lane_errors == [LaneError(1, 2, "m", False), LaneError(1, 2, "m", True)]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (_result(lanes=[0]), "1, 2 and 2 entries"),
        (_result(lanes=[0, 4]), "lanes: 4 is not below 4"),
        (_result(lanes=[1, 1]), "twice"),
        (_result(token_ids=[7, 10]), "token_ids: 10 is not below 10"),
        (worker_pb2.StepResult(lanes=b"\x00"), "lanes: 1 bytes"),
        (_result(logprobs=[worker_pb2.TokenLogprobs(lane=3)]), "lane 3 did not sample"),
        (_result(logprobs=[worker_pb2.TokenLogprobs(lane=0, top_token_ids=pack_ids([1]))]), "4 bytes of tokens and 0"),
        (_result(prompt_logprobs=[worker_pb2.PromptTokenLogprobs(lane=2, first_index=1, logprobs=b"1234")]), "lane 2 has no"),
        (_result(prompt_logprobs=[worker_pb2.PromptTokenLogprobs(lane=2, first_index=1, logprobs=b"123")]), "3 bytes"),
        (_result(prompt_logprobs=[worker_pb2.PromptTokenLogprobs()] * 2), "prompt_logprobs: 2 entries, limit 1"),
        (_result(lane_errors=[worker_pb2.LaneError()] * 5), "lane_errors: 5 entries, limit 4"),
        (_result(logprobs=[worker_pb2.TokenLogprobs(lane=0)] * 3), "logprobs: 3 entries, limit 2"),
        (_result(logprobs=[worker_pb2.TokenLogprobs(lane=0, sampled=float("nan"))]), "nan of lane 0 is not finite"),
        (_result(logprobs=[_alternatives([10], [-1.0])]), "top_token_ids: 10 is not below 10"),
        (_result(logprobs=[_alternatives([1], [float("inf")])]), "top_logprobs: inf is not finite"),
        (_result(logprobs=[_alternatives([1] * 257, [-1.0] * 257)]), "top_token_ids: 257 entries, limit 256"),
        (_result(lanes=range(5), generations=range(5), token_ids=range(5)), "lanes: 5 entries, limit 4"),
    ],
)
def test_columns_that_do_not_fit_are_refused(message, complaint):
    with pytest.raises(FrameError, match=complaint):
        _read(message)


def test_endless_complaints_are_cut():
    result = _read(_result(error="x" * 5000, lane_errors=[worker_pb2.LaneError(lane=0, generation=1, message="y" * 5000)]))
    assert (len(result.error), len(result.lane_errors[0].message)) == (1000, 1000)


def test_alternatives_of_prompt_tokens_must_spread_evenly():
    chunk = worker_pb2.PromptTokenLogprobs(
        lane=0, first_index=1, logprobs=pack_floats([0, 0]), top_token_ids=pack_ids([1]), top_logprobs=pack_floats([0])
    )
    with pytest.raises(FrameError, match="1 alternatives do not spread over 2"):
        _read(_result(prompt_logprobs=[chunk]), {0: [1, 2, 3]})


def test_token_for_another_generation_is_refused():
    mirror = LaneMirror(4, 1)
    mirror.apply(step_frame(Step(1, 0, admissions=[admission(lane=0), admission(lane=1, generation=5)]), epoch=1).step)
    with pytest.raises(FrameError, match="lane 1 is not live in generation 1"):
        mirror.take(sampled_columns(_result(), _LIMITS))


def test_mirror_is_back_at_nothing_when_all_is_released():
    mirror = LaneMirror(4, 1)
    empty = mirror.digest
    mirror.apply(step_frame(Step(1, 0, admissions=[admission(lane=0), admission(lane=1)]), epoch=1).step)
    mirror.take(sampled_columns(_result(), _LIMITS))
    assert mirror.digest != empty
    mirror.apply(step_frame(Step(2, 1, released_lanes=[1, 0]), epoch=1).step)
    assert mirror.digest == empty
