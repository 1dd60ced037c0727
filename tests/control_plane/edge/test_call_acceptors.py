"""Several calls of a method are taken up together."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from control_plane.edge.call_acceptors import CallAcceptors
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc


class Service(admin_pb2_grpc.AdminServiceServicer):
    """Answers, and goes on when told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.num_begun = 0

    async def Drain(self, request: admin_pb2.DrainRequest, context: Any) -> admin_pb2.DrainResponse:
        self.num_begun += 1
        await self.go_on.wait()
        return admin_pb2.DrainResponse(num_running=1)


class Counting(grpc.aio.ServerInterceptor):
    """Counts calls by method."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        self.calls[details.method] += 1
        return await continuation(details)


class Plane:
    """A server with acceptors, and a client."""

    def __init__(self) -> None:
        self.service, self.interceptor = Service(), Counting()
        self.server = grpc.aio.server(interceptors=[self.interceptor])
        self.acceptors = CallAcceptors(self.server, [self.interceptor])
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.service, self.acceptors)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}")
        self.stub = admin_pb2_grpc.AdminServiceStub(self.channel)


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    plane = Plane()
    await plane.server.start()
    yield plane
    await plane.channel.close()
    await plane.server.stop(None)


async def answers(plane: Plane, count: int) -> Counter[int]:
    """Make many calls at once, which go on when all of them have begun."""

    async def call() -> int:
        return (await plane.stub.Drain(admin_pb2.DrainRequest())).num_running

    calls = [asyncio.create_task(call()) for _ in range(count)]
    while plane.service.num_begun < count:
        await asyncio.sleep(0.005)
    plane.service.go_on.set()
    return Counter(await asyncio.gather(*calls))


async def test_each_call_is_answered_once_and_passes_the_interceptors(plane: Plane) -> None:
    plane.acceptors.start()
    assert await answers(plane, 200) == {1: 200}
    assert (plane.interceptor.calls, plane.service.num_begun) == ({"/pypto_serving.admin.v1.AdminService/Drain": 200}, 200)
    assert plane.acceptors.num_waiting == 16 * len(admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods)


async def test_a_method_that_is_not_implemented_is_refused(plane: Plane) -> None:
    plane.acceptors.start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.stub.GetState(admin_pb2.GetStateRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_acceptors_end_with_their_server(plane: Plane) -> None:
    plane.acceptors.start()
    await asyncio.sleep(0)
    await plane.server.stop(None)
    await asyncio.sleep(0)
    assert plane.acceptors.num_waiting == 0


async def test_calls_under_way_end_when_the_server_stops(plane: Plane) -> None:
    plane.acceptors.start()
    call = plane.stub.Drain(admin_pb2.DrainRequest())
    while not plane.service.num_begun:
        await asyncio.sleep(0.005)
    await plane.server.stop(0)
    assert await call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


async def test_another_grpc_takes_calls_up_at_its_own_pace(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    plane.acceptors.start("9.0.0")
    assert (plane.acceptors.num_waiting, "one at a time" in caplog.text) == (0, True)
    assert await answers(plane, 20) == {1: 20}
