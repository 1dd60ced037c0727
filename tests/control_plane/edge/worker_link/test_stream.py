"""Who answers at an address; large frames on the link to a worker, with the options that both processes use."""

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from control_plane.edge.worker_link.options import LinkOptions
from control_plane.edge.worker_link.stream import WORKER_CHANNEL, PortAnswer, open_stream, probe_port
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc
from worker.service.channel_options import SERVER_OPTIONS

LARGE = bytes(6_000_000)  # one and a half million token ids; gRPC's default limit is 4 MiB


class Echo(worker_pb2_grpc.WorkerServiceServicer):
    """Welcomes, then sends back what it gets."""

    async def Execute(
        self, frames: AsyncIterator[worker_pb2.ExecuteRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        async for frame in frames:
            if frame.HasField("hello"):
                yield worker_pb2.ExecuteResponse(welcome=worker_pb2.Welcome())
            else:
                token_ids = frame.step.admissions[0].token_ids
                yield worker_pb2.ExecuteResponse(result=worker_pb2.StepResult(token_ids=token_ids))


async def test_rpc_02_rpc_03_frames_above_4_mib_pass_both_ways() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream, _ = await open_stream(f"127.0.0.1:{port}", worker_pb2.Hello(), LinkOptions("ours", "model"))
    stream.send(worker_pb2.ExecuteRequest(step=worker_pb2.Step(admissions=[worker_pb2.LaneAdmission(token_ids=LARGE)])))
    writer = asyncio.create_task(stream.write())
    assert (await stream.receive()).result.token_ids == LARGE
    writer.cancel()
    await stream.close()
    await server.stop(None)


def test_rpc_02_both_ends_of_the_link_agree_on_the_largest_message() -> None:
    for options in (WORKER_CHANNEL, SERVER_OPTIONS):
        sizes = {value for name, value in options if name in ("grpc.max_send_message_length", "grpc.max_receive_message_length")}
        assert sizes == {MAX_MESSAGE_BYTES}


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_listener_is_open(listener):
    assert await probe_port(f"127.0.0.1:{listener.getsockname()[1]}", 5) is PortAnswer.OPEN


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_is_a_refusal_whatever_the_name_stands_for(listener, host):
    port = listener.getsockname()[1]
    listener.close()
    assert await probe_port(f"{host}:{port}", 5) is PortAnswer.REFUSED


async def test_a_name_that_means_nothing_is_unreachable():
    assert await probe_port("worker..local:1", 5) is PortAnswer.UNREACHABLE


async def test_no_time_is_silence():
    assert await probe_port("127.0.0.1:1", 0) is PortAnswer.SILENT
