import asyncio

import grpc.aio
import pytest

from control_plane.edge.service.admin_proxy import AdminProxy
from control_plane.edge.service.errors import Unavailable
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc


class Scheduler(admin_pb2_grpc.AdminServiceServicer):
    """Answers with what tells the calls apart."""

    async def GetState(self, request: admin_pb2.GetStateRequest, context: object) -> admin_pb2.GetStateResponse:
        return admin_pb2.GetStateResponse(num_calls=3 if request.with_token_ids else 2)

    async def ResetPrefixCache(self, request: admin_pb2.ResetPrefixCacheRequest, context: object) -> admin_pb2.ResetPrefixCacheResponse:
        return admin_pb2.ResetPrefixCacheResponse(num_pages=4)

    async def Drain(self, request: admin_pb2.DrainRequest, context: object) -> admin_pb2.DrainResponse:
        return admin_pb2.DrainResponse(num_running=5)

    async def SetLogLevel(self, request: admin_pb2.SetLogLevelRequest, context: object) -> admin_pb2.SetLogLevelResponse:
        return admin_pb2.SetLogLevelResponse(processes=["scheduler", request.process])


async def test_calls_are_handed_on_to_the_scheduler() -> None:
    server = grpc.aio.server()
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Scheduler(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        proxy = AdminProxy(lambda: channel)
        assert (await proxy.GetState(admin_pb2.GetStateRequest(with_token_ids=True), None)).num_calls == 3
        assert (await proxy.ResetPrefixCache(admin_pb2.ResetPrefixCacheRequest(), None)).num_pages == 4
        assert (await proxy.Drain(admin_pb2.DrainRequest(), None)).num_running == 5
        assert (await proxy.SetLogLevel(admin_pb2.SetLogLevelRequest(process="p"), None)).processes == ["scheduler", "p"]
        await server.stop(None)
        with pytest.raises(Unavailable, match="the scheduler: UNAVAILABLE: "):
            await proxy.GetState(admin_pb2.GetStateRequest(), None)


async def test_without_a_scheduler_operators_are_told_so() -> None:
    with pytest.raises(Unavailable, match="no scheduler is in session"):
        await AdminProxy(lambda: None).Drain(admin_pb2.DrainRequest(), None)


async def test_the_end_of_the_session_ends_no_call_of_an_operator_as_if_he_had_cancelled_it() -> None:
    asked = asyncio.Event()

    class Silent(admin_pb2_grpc.AdminServiceServicer):
        async def Drain(self, request: admin_pb2.DrainRequest, context: object) -> admin_pb2.DrainResponse:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    server = grpc.aio.server()
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    call = asyncio.create_task(AdminProxy(lambda: channel).Drain(admin_pb2.DrainRequest(), None))
    await asked.wait()
    await channel.close()
    with pytest.raises(Unavailable, match="the scheduler: the session has ended"):
        await call
    await server.stop(None)
