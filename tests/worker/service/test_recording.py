"""Recordings of a worker: exactly the steps between two frames, sent beside the results."""

import asyncio

import grpc
import pytest
from fakes.control_plane.hand_control_plane import HandControlPlane, wire_admission
from harness.worker_rig import Rig

from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.frames import encode_recording
from pypto_serving.recording.recorder import Level, RecordingLimits
from pypto_serving.worker.v1 import worker_pb2 as pb


async def tell(control_plane: HandControlPlane, recording_id: str = "a", level: Level = Level.STEPS, is_over: bool = False) -> None:
    recording = encode_recording(recording_id, RecordingLimits(level, 60.0, 1000), is_over)
    await control_plane.send(pb.ExecuteRequest(epoch=control_plane.epoch, recording=recording))


async def run(control_plane: HandControlPlane, *step_ids: int) -> None:
    """Run some steps, one after the other."""
    for step_id in step_ids:
        admissions = [wire_admission(lane=0, token_ids=[1], pages=[0])] if step_id == 1 else []
        await control_plane.step(step_id, step_id - 1, admissions=admissions)
        await control_plane.result()


async def spans_of(control_plane: HandControlPlane) -> profile_pb2.Spans:
    return (await control_plane.read("spans")).spans


async def test_the_steps_between_two_frames_are_recorded_and_no_others(rig: Rig) -> None:
    control_plane = rig.control_plane()
    assert "recordings" in (await control_plane.open()).features
    await run(control_plane, 1, 2)
    await tell(control_plane)
    await run(control_plane, 3, 4)
    await tell(control_plane, is_over=True)
    await control_plane.step(5, 4)
    spans = await spans_of(control_plane)
    assert [span.name for span in spans.spans if span.track == "device"] == ["step 3", "step 4"]
    assert (spans.recording_id, spans.is_last, spans.num_dropped) == ("a", True, 0)


async def test_a_step_says_what_ran_and_which_it_was(rig: Rig) -> None:
    control_plane = rig.control_plane()
    await control_plane.open()
    await tell(control_plane)
    await run(control_plane, 1)
    await tell(control_plane, is_over=True)
    [step] = [span for span in (await spans_of(control_plane)).spans if span.track == "device"]
    assert list(step.flows) == ["step worker-1 1"]
    assert dict(step.counts) == {"step": 1, "admitted": 1, "chunks": 0, "chunk_tokens": 0, "sampled": 1}


async def test_at_the_level_of_requests_a_worker_has_nothing_to_tell(rig: Rig) -> None:
    control_plane = rig.control_plane()
    await control_plane.open()
    await tell(control_plane, level=Level.REQUESTS)
    await run(control_plane, 1)
    await tell(control_plane, is_over=True)
    assert not (await spans_of(control_plane)).spans


async def test_operators_that_nobody_sees_are_noted(rig: Rig) -> None:
    control_plane = rig.control_plane()
    await control_plane.open()
    await tell(control_plane, level=Level.OPERATORS)
    await run(control_plane, 1)
    await tell(control_plane, is_over=True)
    spans = await spans_of(control_plane)
    assert [note.partition(":")[0] for note in spans.notes] == ["no operators"] and spans.spans


async def test_another_control_plane_finds_nothing_of_it(rig: Rig) -> None:
    first, second = rig.control_plane(), rig.control_plane()
    await first.open("cp-1")
    await tell(first)
    await run(first, 1)
    await second.open("cp-2", takeover=True)
    await tell(second, is_over=True)
    answer = await spans_of(second)
    assert answer.is_last and not answer.spans and "knows nothing" in answer.notes[0]


async def test_the_same_control_plane_gets_it_over_its_next_stream(rig: Rig) -> None:
    first, again = rig.control_plane(), rig.control_plane()
    await first.open()
    await tell(first)
    await run(first, 1)
    await again.open(resume_incarnation="worker-1", acked_step_id=1)
    await tell(again, is_over=True)
    assert [span.name for span in (await spans_of(again)).spans if span.track == "device"] == ["step 1"]


async def test_a_recording_that_makes_no_sense_ends_the_stream(rig: Rig) -> None:
    control_plane = rig.control_plane()
    await control_plane.open()
    await control_plane.send(pb.ExecuteRequest(epoch=control_plane.epoch, recording=profile_pb2.Recording(id="a")))
    assert await control_plane.end() == (grpc.StatusCode.INVALID_ARGUMENT, f"recording.level: 0, must be from 1 to {2**31 - 1}")


@pytest.mark.parametrize("has_clock", [True, False])
async def test_a_heartbeat_with_a_clock_is_answered_at_once(rig: Rig, has_clock: bool) -> None:
    control_plane = rig.control_plane()
    await control_plane.open()
    clock = profile_pb2.Clock(sent_ns=42) if has_clock else None
    await control_plane.send(pb.ExecuteRequest(epoch=control_plane.epoch, heartbeat=pb.Heartbeat(clock=clock)))
    async with asyncio.timeout(30):
        while not (progress := (await control_plane.read("progress")).progress).HasField("clock") and has_clock:
            pass
    assert progress.clock.echoed_ns == (42 if has_clock else 0)
    assert progress.HasField("clock") == has_clock
