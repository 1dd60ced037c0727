from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.control_plane.hand_control_plane import wire_admission
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import NO_PAGE, pack_floats, pack_ids, unpack_floats, unpack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.service.frames import decode_step, encode_failure, encode_result, encode_welcome
from worker.step import CacheGroup, LaneError, PromptTokenLogprobs, StepResult, TokenLogprobs, WorkerDescription

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WORKER = WorkerDescription(
    incarnation="worker-1",
    model_fingerprint="f",
    numerics_id="n",
    vocab_size=100,
    max_model_len=64,
    max_lanes=4,
    max_step_tokens=32,
    max_steps_in_flight=2,
    lease_seconds=10.0,
    num_partitions=2,
    cache_groups=(CacheGroup("full", 16, num_pages=8), CacheGroup("sliding", 16, num_pages=6, window_tokens=20)),
)


def ids(*values: int) -> bytes:
    return pack_ids(list(values))


def tables(*tables: list[int]) -> list[pb.PageTable]:
    return [pb.PageTable(page_ids=pack_ids(pages)) for pages in tables]


def admit(**fields: Any) -> pb.Step:
    """A step that admits one valid sequence, changed by `fields`."""
    fields = {"lane": 1, "token_ids": [5, 6, 7], "pages": [], "page_tables": tables([0], [NO_PAGE]), **fields}
    return pb.Step(step_id=1, admissions=[wire_admission(**fields)])


def sampling(**fields: Any) -> pb.LaneSampling:
    return pb.LaneSampling(**{"top_p": 1.0, "repetition_penalty": 1.0, **fields})


def test_empty_step_has_empty_columns() -> None:
    step = decode_step(pb.Step(step_id=3, acked_step_id=2), WORKER)
    assert step.step_id == 3
    assert [len(step.released_lanes), len(step.admissions), len(step.grown_pages), len(step.chunk_lanes), step.masks] == [0, 0, 0, 0, {}]


@pytest.mark.parametrize(("sent", "read"), [(TRACEPARENT, TRACEPARENT), ("", ""), ("nonsense", "")])
def test_a_trace_is_read_and_an_invalid_one_ignored(sent: str, read: str) -> None:
    assert decode_step(admit(traceparent=sent), WORKER).admissions[0].traceparent == read


def test_columns_are_unpacked() -> None:
    frame = pb.Step(
        step_id=1,
        released_lanes=ids(3),
        grown_lanes=ids(0, 1),
        grown_groups=ids(0, 1),
        grown_pages=ids(7, 5),
        trimmed_lanes=ids(1),
        trimmed_groups=ids(1),
        trimmed_entries=ids(2),
        chunk_lanes=ids(0, 2),
        chunk_tokens=ids(30, 0),
        masks=[pb.LaneMask(lane=1, allowed=b"\xff" * 13)],
    )
    step = decode_step(frame, WORKER)
    assert [step.grown_lanes.tolist(), step.grown_groups.tolist(), step.grown_pages.tolist()] == [[0, 1], [0, 1], [7, 5]]
    assert [step.trimmed_lanes.tolist(), step.trimmed_groups.tolist(), step.trimmed_entries.tolist()] == [[1], [1], [2]]
    assert [step.released_lanes.tolist(), step.chunk_lanes.tolist(), step.chunk_tokens.tolist()] == [[3], [0, 2], [30, 0]]
    assert step.masks == {1: b"\xff" * 13}


def test_admission_keeps_every_field() -> None:
    drawn = pb.LaneSampling(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        seed=2**64 - 1,
        bias_token_ids=ids(9),
        bias_values=pack_floats([-2.5]),
        logprobs=True,
        top_logprobs=4,
        prompt_logprobs=0,
    )
    fields = {"generation": 8, "num_prompt_tokens": 2, "num_computed_tokens": 1, "partition": 1, "constrained": True}
    frame = admit(**fields, generation_high=1, min_length=5, end_token_ids=ids(2, 3), sampling=drawn)
    taken = decode_step(frame, WORKER).admissions[0]
    assert {field: getattr(taken, field) for field in fields} == {**fields, "generation": 2**32 + 8}
    assert (taken.token_ids.tolist(), taken.end_token_ids.tolist(), taken.min_length, taken.final_length) == ([5, 6, 7], [2, 3], 5, 16)
    assert [table.tolist() for table in taken.page_tables] == [[0], [NO_PAGE]]
    plain = [name for name in type(taken.sampling).__slots__ if not name.startswith("bias")]
    assert {name: getattr(taken.sampling, name) for name in plain} == {name: getattr(drawn, name) for name in plain}
    assert (taken.sampling.bias_token_ids.tolist(), taken.sampling.bias_values.tolist()) == ([9], [-2.5])


def test_absent_prompt_logprobs_stay_absent() -> None:
    assert decode_step(admit(), WORKER).admissions[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pb.Step(), "step.step_id: 0"),
        (admit(generation_high=2**31), "step.admissions.generation: 9223372036854775809, must be from 0 to 9223372036854775807"),
        (pb.Step(step_id=2, acked_step_id=2), "step.acked_step_id: 2 is not below the step's own id 2"),
        (pb.Step(step_id=1, released_lanes=ids(4)), "step.released_lanes: 4 is not below 4"),
        (pb.Step(step_id=1, released_lanes=b"12345"), "step.released_lanes: 5 bytes are not a whole number of uint32"),
        (pb.Step(step_id=1, released_lanes=ids(1, 1)), "step.released_lanes: names a lane twice"),
        (pb.Step(step_id=1, chunk_lanes=ids(0)), "differ in length: step.chunk_lanes 1, step.chunk_tokens 0"),
        (pb.Step(step_id=1, chunk_lanes=ids(0), chunk_tokens=ids(33)), "step.chunk_tokens: 33 is not below 33"),
        (pb.Step(step_id=1, chunk_lanes=ids(0, 1), chunk_tokens=ids(30, 30)), "step.chunk_tokens: 60 tokens in all, limit 32"),
        (pb.Step(step_id=1, chunk_lanes=ids(2, 2), chunk_tokens=ids(1, 1)), "step.chunk_lanes: names a lane twice"),
        (pb.Step(step_id=1, grown_lanes=ids(0), grown_groups=ids(0), grown_pages=ids(8)), "step.grown_pages: 8 is not below 8"),
        (pb.Step(step_id=1, grown_lanes=ids(0), grown_groups=ids(1), grown_pages=ids(6)), "6 is not below 6, the pages of cache group 1"),
        (pb.Step(step_id=1, grown_lanes=ids(0), grown_groups=ids(2), grown_pages=ids(0)), "step.grown_groups: 2 is not below 2"),
        (pb.Step(step_id=1, grown_lanes=ids(0)), "step.grown_lanes 1, step.grown_groups 0, step.grown_pages 0"),
        (
            pb.Step(step_id=1, trimmed_lanes=ids(0), trimmed_groups=ids(0), trimmed_entries=ids(1)),
            "step.trimmed_groups: 0 (full)",
        ),
        (pb.Step(step_id=1, trimmed_lanes=ids(0), trimmed_groups=ids(1), trimmed_entries=ids(5)), "step.trimmed_entries: 5, limit 4"),
        (pb.Step(step_id=1, trimmed_lanes=ids(0), trimmed_groups=ids(2), trimmed_entries=ids(1)), "step.trimmed_groups: 2 is not below 2"),
        (pb.Step(step_id=1, trimmed_lanes=ids(0)), "step.trimmed_lanes 1, step.trimmed_groups 0, step.trimmed_entries 0"),
        (pb.Step(step_id=1, masks=[pb.LaneMask(lane=4, allowed=b"1" * 13)]), "step.masks.lane: 4"),
        (pb.Step(step_id=1, masks=[pb.LaneMask(lane=0, allowed=b"1" * 12)]), "step.masks.allowed: 12 bytes"),
        (pb.Step(step_id=1, masks=[pb.LaneMask(lane=0, allowed=b"1" * 13)] * 2), "step.masks.lane: names a lane twice"),
        (pb.Step(step_id=1, masks=[pb.LaneMask()] * 5), "step.masks (number): 5, must be from 0 to 4"),
        (pb.Step(step_id=1, admissions=[pb.LaneAdmission()] * 5), "step.admissions (number): 5, must be from 0 to 4"),
        (admit(lane=4), "step.admissions.lane: 4, must be from 0 to 3"),
        (admit(token_ids=[5, 100]), "step.admissions.token_ids: 100 is not below 100"),
        (admit(token_ids=[], num_prompt_tokens=1), "step.admissions.token_ids (length): 0"),
        (admit(token_ids=[1] * 65), "step.admissions.token_ids (length): 65"),
        (admit(num_prompt_tokens=0), "step.admissions.num_prompt_tokens: 0"),
        (admit(num_prompt_tokens=4), "step.admissions.num_prompt_tokens: 4, must be from 1 to 3"),
        (admit(num_computed_tokens=3), "step.admissions.num_computed_tokens: 3, must be from 0 to 2"),
        (admit(final_length=2), "step.admissions.final_length: 2, must be from 3 to 64"),
        (admit(final_length=65), "step.admissions.final_length: 65"),
        (admit(partition=2), "step.admissions.partition: 2"),
        (admit(end_token_ids=ids(100)), "step.admissions.end_token_ids: 100"),
        (admit(page_tables=tables([0])), "step.admissions.page_tables: 1 tables, the model has 2 cache groups"),
        (admit(page_tables=tables([8], [0])), "step.admissions.page_tables (full): 8 is not below 8"),
        (admit(page_tables=tables([NO_PAGE], [0])), "step.admissions.page_tables (full): 4294967295 is not below 8"),
        (admit(page_tables=tables([0], [6])), "step.admissions.page_tables (sliding): 6 is not below 6"),
        (admit(page_tables=tables([0], [0, NO_PAGE])), "step.admissions.page_tables (sliding): 4294967295 is not below 6"),
        (admit(page_tables=tables([0] * 5, [0])), "step.admissions.page_tables (full) (length): 5, must be from 0 to 4"),
        (admit(sampling=None), "step.admissions.sampling: missing"),
        (admit(sampling=sampling(temperature=float("nan"))), "step.admissions.sampling.temperature: nan is not finite"),
        (admit(sampling=sampling(temperature=-1.0)), "step.admissions.sampling.temperature: -1.0"),
        (admit(sampling=sampling(top_p=1.5)), "step.admissions.sampling.top_p: 1.5"),
        (admit(sampling=sampling(repetition_penalty=0.0)), "step.admissions.sampling.repetition_penalty: 0"),
        (admit(sampling=sampling(presence_penalty=float("inf"))), "step.admissions.sampling.presence_penalty: inf is not finite"),
        (admit(sampling=sampling(top_logprobs=101)), "step.admissions.sampling.top_logprobs: 101"),
        (
            admit(sampling=sampling(bias_token_ids=ids(100), bias_values=pack_floats([1.0]))),
            "step.admissions.sampling.bias_token_ids: 100 is not below 100",
        ),
        (admit(sampling=sampling(bias_token_ids=ids(1))), "bias_token_ids 1, step.admissions.sampling.bias_values 0"),
        (admit(sampling=sampling(bias_token_ids=ids(1), bias_values=pack_floats([np.inf]))), "bias_values: inf is not finite"),
        (pb.Step(step_id=1, admissions=[*admit().admissions, *admit().admissions]), "step.admissions.lane: names a lane twice"),
    ],
)
def test_broken_step_is_refused_naming_field_value_and_limit(frame: pb.Step, message: str) -> None:
    with pytest.raises(FrameError) as refusal:
        decode_step(frame, WORKER)
    assert message in str(refusal.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(garbage: bytes) -> None:
    frame = pb.Step()
    try:
        frame.MergeFromString(garbage)
    except Exception:  # what is no message never reaches the servicer
        return
    try:
        decode_step(frame, WORKER)
    except FrameError as refusal:
        assert str(refusal)


def test_result_columns_are_packed() -> None:
    column = np.array([1, 2], dtype=np.uint32)
    output = StepResult(
        step_id=5,
        lanes=column,
        generations=column + 10,
        token_ids=column + 20,
        digest=2**64 - 1,
        logprobs=[TokenLogprobs(1, -0.5, column, np.array([-0.5, -1.5], dtype=np.float32))],
        prompt_logprobs=[PromptTokenLogprobs(2, 12, 1, np.array([-2.0], dtype=np.float32), column, np.zeros(2, dtype=np.float32))],
        lane_errors=[LaneError(3, 13, "all masked", nothing_to_draw=True)],
    )
    result = encode_result(output, device_us=7, idle_us=2**40)
    assert (result.step_id, result.digest, result.device_us, result.idle_us) == (5, 2**64 - 1, 7, 2**32 - 1)
    columns = (result.lanes, result.generations, result.token_ids, result.logprobs[0].top_token_ids)
    assert [unpack_ids(column, "").tolist() for column in columns] == [[1, 2], [11, 12], [21, 22], [1, 2]]
    assert unpack_floats(result.logprobs[0].top_logprobs, "").tolist() == [-0.5, -1.5]
    assert unpack_floats(result.prompt_logprobs[0].logprobs, "").tolist() == [-2.0]
    assert result.lane_errors[0] == pb.LaneError(lane=3, generation=13, message="all masked", nothing_to_draw=True)


def test_failure_carries_its_step_and_message() -> None:
    assert encode_failure(4, "broken", 1, 2) == pb.StepResult(step_id=4, error="broken", device_us=1, idle_us=2)


def test_window_is_told_only_for_sliding_groups() -> None:
    worker = replace(WORKER, weights_digest=lambda: "d")
    welcome = encode_welcome(worker, protocol_version=1, epoch=1, resumed=False, last_step_id=0)
    assert (welcome.weights_digest, welcome.protocol_version) == ("d", 1)
    full, sliding = welcome.cache_groups
    assert not full.HasField("window_tokens") and sliding.window_tokens == 20
