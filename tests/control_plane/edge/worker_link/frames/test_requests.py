"""Encoding of steps."""

from dataclasses import fields

from fakes.control_plane.core_admission import core_admission

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import Step
from control_plane.edge.worker_link.frames.requests import step_frame
from pypto_serving.wire.columns import NO_PAGE, unpack_floats, unpack_ids


def _ids(column: bytes) -> list[int]:
    return unpack_ids(column, "column").tolist()


def test_changes_become_columns():
    step = Step(
        step_id=7,
        acked_step_id=5,
        released_lanes=[3, 1],
        trimmed_lanes=[2],
        trimmed_groups=[1],
        trimmed_entries=[4],
        grown_lanes=[0, 2],
        grown_groups=[0, 1],
        grown_pages=[17, 18],
        chunk_lanes=[4, 5],
        chunk_tokens=[32, 0],
    )
    frame = step_frame(step, epoch=9)
    message = frame.step
    assert (frame.epoch, message.step_id, message.acked_step_id) == (9, 7, 5)
    assert _ids(message.released_lanes) == [3, 1]
    assert [_ids(column) for column in (message.trimmed_lanes, message.trimmed_groups, message.trimmed_entries)] == [[2], [1], [4]]
    assert [_ids(column) for column in (message.grown_lanes, message.grown_groups, message.grown_pages)] == [[0, 2], [0, 1], [17, 18]]
    assert [_ids(column) for column in (message.chunk_lanes, message.chunk_tokens)] == [[4, 5], [32, 0]]


def test_pure_decode_step_is_tiny():
    assert step_frame(Step(step_id=1000, acked_step_id=999), epoch=1).ByteSize() < 16


def test_masks_come_with_their_lanes():
    step = Step(1, 0, masks={3: b"\x01\x80", 0: b"\xff\x00"})
    assert [(mask.lane, mask.allowed) for mask in step_frame(step, epoch=1).step.masks] == [(3, b"\x01\x80"), (0, b"\xff\x00")]


def test_admission_carries_everything():
    sampling = SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((7, -1.5),), prompt_logprobs=0)
    given = core_admission(
        tokens=[1, 2], pages=[NO_PAGE, 4], end_token_ids=[9], min_length=3, partition=1, sampling=sampling, constrained=True
    )
    (message,) = step_frame(Step(1, 0, admissions=[given]), epoch=1).step.admissions
    assert (_ids(message.token_ids), _ids(message.page_tables[0].page_ids), _ids(message.end_token_ids)) == ([1, 2], [NO_PAGE, 4], [9])
    assert (message.final_length, message.min_length, message.partition, message.constrained) == (10, 3, 1, True)
    assert (message.sampling.temperature, message.sampling.top_p, message.sampling.seed) == (0.5, 1.0, 2**64 - 1)
    assert _ids(message.sampling.bias_token_ids) == [7]
    assert unpack_floats(message.sampling.bias_values, "bias").tolist() == [-1.5]
    assert message.sampling.HasField("prompt_logprobs")


def test_every_sampling_parameter_is_on_the_wire():
    given = {field.name: index + 1 for index, field in enumerate(fields(SamplingParams)) if field.name != "logit_bias"}
    (message,) = step_frame(Step(1, 0, admissions=[core_admission(sampling=SamplingParams(**given))]), epoch=1).step.admissions
    assert {name: getattr(message.sampling, name) for name in given} == given | {"logprobs": True}


def test_absent_prompt_logprobs_stay_absent():
    (message,) = step_frame(Step(1, 0, admissions=[core_admission()]), epoch=1).step.admissions
    assert not message.sampling.HasField("prompt_logprobs")
