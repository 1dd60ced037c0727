"""Where a scheduler meets its front ends, and operators through them."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from control_plane.edge.config import FrontEndPort, ServedAddress
from control_plane.edge.frontend_link.service import SessionOptions
from control_plane.edge.profiling.profiler import Profiler
from control_plane.edge.server.front_end_port import FrontEndServer
from control_plane.edge.service import admin_service
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc


class StuckThread:
    """An engine whose event loop does not turn; it stands in for itself, too."""

    def __init__(self) -> None:
        self.profiler = Profiler("scheduler")
        self.snapshot = EngineSnapshot()

    def take_snapshot(self) -> EngineSnapshot:
        return self.snapshot

    def refused_workers_now(self) -> list[RefusedWorker]:
        return []

    def seconds_since_turn(self) -> float:
        return 60.0

    async def call(self, function: object) -> object:
        return await asyncio.Event().wait()


@pytest.fixture
async def operators() -> "AsyncIterator[admin_pb2_grpc.AdminServiceAsyncStub]":
    port = FrontEndPort(None, ServedAddress("127.0.0.1", 0), None)
    server = FrontEndServer(port, None, SessionOptions("scheduler", "f1"), lambda: "", lambda: None)
    server.may_serve.set_result(None)
    thread = StuckThread()
    async with server.serve(thread, thread), grpc.aio.insecure_channel(f"127.0.0.1:{server.bound.result()}") as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


async def test_operators_hear_of_a_stuck_engine_in_our_words(
    operators: "admin_pb2_grpc.AdminServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_service, "_ENGINE_SECONDS", 0.01)
    with pytest.raises(grpc.aio.AioRpcError, match=r"the engine has not answered for 0\.01 s") as caught:
        await operators.GetState(admin_pb2.GetStateRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
