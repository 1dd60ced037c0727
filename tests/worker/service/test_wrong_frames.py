"""What a control plane says that a worker cannot take, or does not know."""

import grpc
import grpc.aio
import pytest
from fakes.control_plane.hand_control_plane import hello, wire_admission
from harness.worker_rig import Rig

from pypto_serving.wire.columns import unpack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        (
            {"protocol_version": 2},
            grpc.StatusCode.FAILED_PRECONDITION,
            "hello.protocol_version: 2, hello.min_protocol_version: 0; this worker speaks 1 to 1",
        ),
        ({"protocol_version": 3, "min_protocol_version": 2}, grpc.StatusCode.FAILED_PRECONDITION, "hello.min_protocol_version: 2;"),
        ({"protocol_version": 0}, grpc.StatusCode.FAILED_PRECONDITION, "hello.protocol_version: 0"),
        ({"features": ["f"] * 65}, grpc.StatusCode.INVALID_ARGUMENT, r"hello.features \(number\): 65, must be from 0 to 64"),
        (
            {"model_fingerprint": "e"},
            grpc.StatusCode.FAILED_PRECONDITION,
            "the control plane has a model with fingerprint e, this worker has a model: another model",
        ),
        ({"model_fingerprint": ""}, grpc.StatusCode.INVALID_ARGUMENT, "hello.model_fingerprint: empty"),
        ({"name": ""}, grpc.StatusCode.INVALID_ARGUMENT, "hello.control_plane_id: empty"),
        ({"name": "x" * 300}, grpc.StatusCode.INVALID_ARGUMENT, "hello.control_plane_id: 'x{256}', must be 1 to 256 printable characters"),
        ({"name": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 256 printable characters"),
    ],
)
async def test_wrong_hello_is_refused(rig: Rig, fields: dict[str, str], code: grpc.StatusCode, message: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as refusal:
        await rig.control_plane().open(**fields)
    assert refusal.value.code() is code
    assert rig.metric("epoch") == 0


async def test_a_newer_control_plane_settles_on_what_the_worker_speaks(rig: Rig) -> None:
    welcome = await rig.control_plane().open(protocol_version=9, min_protocol_version=1, features=["of-tomorrow"])
    assert (welcome.protocol_version, list(welcome.features)) == (1, ["wide-generations", "recordings", "log-levels"])


async def test_frames_and_fields_of_a_newer_control_plane_are_ignored(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    unknown = b"\xfa\x01\x03new"  # field 31, a message
    frame = pb.ExecuteRequest.FromString(pb.ExecuteRequest(epoch=1).SerializeToString() + unknown)
    step = pb.Step.FromString(pb.Step(step_id=1, admissions=[wire_admission(0, [1], pages=[0])]).SerializeToString() + unknown)
    for sent in (frame, pb.ExecuteRequest(epoch=1, step=step), frame):
        await plane.send(sent)
    assert unpack_ids((await plane.result()).lanes, "lanes").tolist() == [0]
    assert rig.metric("broken_frames_total") == 0


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pb.ExecuteRequest(epoch=1), "frame: not set"),
        (hello(), "frame: hello; after Hello it is step, reset, heartbeat, recording, log_level or farewell"),
        (pb.ExecuteRequest(epoch=1, step=pb.Step(step_id=3)), "step.step_id: 3, the next step is 2"),
        (pb.ExecuteRequest(epoch=1, step=pb.Step(step_id=2, released_lanes=b"abc")), "step.released_lanes: 3 bytes"),
    ],
)
async def test_broken_frame_ends_the_stream_and_nothing_else(rig: Rig, frame: pb.ExecuteRequest, message: str) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1)
    await plane.result()
    frame.epoch = 1
    await plane.send(frame)
    code, details = await plane.end()
    assert code is grpc.StatusCode.INVALID_ARGUMENT and message in details
    assert rig.runner.step_ids == [1]
    again = rig.control_plane()
    await again.open()
    await again.step(1)
    assert (await again.result()).step_id == 1


async def test_rpc_02_a_frame_of_megabytes_is_judged_by_its_content(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [16_384] * 1_500_000, pages=[0])])
    code, details = await plane.end()
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "step.admissions.token_ids: 16384 is not below 100" in details
    again = rig.control_plane()
    await again.open()
    await again.step(1, admissions=[wire_admission(0, [5], pages=[0])])
    assert (await again.result()).error == ""


async def test_stream_has_to_begin_with_hello(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.step(1)
    code, details = await plane.end()
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "frame: the first one has to be Hello")


async def test_stream_without_hello_is_ended(rig: Rig) -> None:
    plane = rig.control_plane()
    code, details = await plane.end()
    assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within 0.4 s")


@pytest.mark.parametrize("frames", [[b"\xff\xff\xff\xff"], [hello().SerializeToString(), b"\xff\xff\xff\xff"]])
async def test_bytes_that_are_no_frame_break_the_contract(rig: Rig, frames: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    raw = rig.channel.stream_stream("/pypto_serving.worker.v1.WorkerService/Execute")()
    for frame in frames:
        await raw.write(frame)
    with pytest.raises(grpc.aio.AioRpcError, match="frame: not an ExecuteRequest") as end:
        while await raw.read() is not grpc.aio.EOF:
            pass
    assert end.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.metric("broken_frames_total") == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert (await rig.control_plane().open("cp-1", takeover=True)).incarnation == "worker-1"
