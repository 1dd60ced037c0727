"""A scheduler against a front end that sends what it must not: the session ends, and others notice nothing."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import grpc
import pytest
from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import expected_tokens
from fakes.control_plane.submissions import make_choice, submit
from fakes.network.frame_mutations import mutate_one
from harness.linked_front_end import LinkedFrontEnd
from harness.served_scheduler import ServedScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from pypto_serving.scheduler.v1 import scheduler_pb2 as pb

pytestmark = pytest.mark.slow

_HELLO = pb.Hello(protocol_version=1, min_protocol_version=1, front_end_id="hostile", model_fingerprint="model")


def _session() -> list[pb.ConnectRequest]:
    end = pb.End(request_id="hostile 1", failure=pb.FAILURE_CANCELLED)
    commands = [
        [submit("hostile 0", make_choice(1), make_choice(2, index=1)), submit("hostile 1", make_choice(3))],
        [pb.Command(hold="hostile 0"), pb.Command(unhold="hostile 0"), pb.Command(finish=1)],
        [pb.Command(end=end), pb.Command(drain=pb.Drain()), submit("hostile 2", make_choice(4))],
    ]
    frames = [pb.ConnectRequest(commands=pb.Commands(commands=some)) for some in commands]
    return [pb.ConnectRequest(hello=_HELLO), *frames, pb.ConnectRequest(state=pb.FrontEndState(num_calls=1, metrics=b"a 1"))]


async def _attack(address: str, frames: Sequence[pb.ConnectRequest | bytes]) -> None:
    """Send frames until the scheduler has enough."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        connect = channel.stream_stream(
            "/pypto_serving.scheduler.v1.SchedulerService/Connect",
            request_serializer=lambda frame: frame if isinstance(frame, bytes) else frame.SerializeToString(),
            response_deserializer=pb.ConnectResponse.FromString,
        )
        call = connect(iter(frames))
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            assert error.code() is not grpc.StatusCode.UNKNOWN, "the scheduler has failed"


async def _run(seed: int, num_changes: int) -> None:
    random, frames = Random(seed), list(_session())
    for _ in range(num_changes):
        mutate_one(random, random.choice(frames))
    if random.random() < 0.3:
        frames.insert(random.randrange(len(frames)), random.choice([random.randbytes(30), b"", b"\xfa\x01\x00"]))
    with TemporaryDirectory() as directory:
        scheduler = ServedScheduler(Path(directory) / "s", max_silence_seconds=60.0)
        await scheduler.start()
        scheduler.engine.checks_resumes = False
        front_end = LinkedFrontEnd([scheduler.address])
        request = make_request("sound", 2)
        call = front_end.submit(request)
        try:
            await _attack(scheduler.address, frames)
            while not call.has_ended:
                scheduler.engine.step()
                await asyncio.sleep(0.001)
            assert list(call.tokens.values()) == [expected_tokens(request, choice) for choice in (0, 1)]
            assert [view.front_end_id for view in scheduler.service.front_ends] == ["front end"]
            assert not scheduler.engine.live, "a session leaves nothing behind"
        finally:
            await front_end.close()
            await scheduler.kill()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_a_hostile_front_end_harms_nobody(seed, num_changes):
    asyncio.run(asyncio.wait_for(_run(seed, num_changes), 60))
