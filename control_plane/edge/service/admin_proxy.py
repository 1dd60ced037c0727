"""The service for operators where the engine is another process: hands every call on to the scheduler."""

from collections.abc import Callable
from typing import Any, NoReturn

import grpc.aio

from control_plane.edge.service.errors import Unavailable
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc

_SCHEDULER_SECONDS = 10.0

_Context = grpc.aio.ServicerContext[Any, Any]


class AdminProxy(admin_pb2_grpc.AdminServiceServicer):
    """Lives on the clients' event loop. `channel` gives the connection to the scheduler in session."""

    def __init__(self, channel: Callable[[], grpc.aio.Channel | None]) -> None:
        self._channel = channel

    async def GetState(self, request: admin_pb2.GetStateRequest, context: _Context) -> admin_pb2.GetStateResponse:
        """The scheduler's snapshot, with what all front ends say."""
        try:
            return await self._scheduler().GetState(request, timeout=_SCHEDULER_SECONDS)
        except grpc.aio.AioRpcError as error:
            _refuse(error)

    async def ResetPrefixCache(self, request: admin_pb2.ResetPrefixCacheRequest, context: _Context) -> admin_pb2.ResetPrefixCacheResponse:
        """Let the scheduler forget cached pages."""
        try:
            return await self._scheduler().ResetPrefixCache(request, timeout=_SCHEDULER_SECONDS)
        except grpc.aio.AioRpcError as error:
            _refuse(error)

    async def Drain(self, request: admin_pb2.DrainRequest, context: _Context) -> admin_pb2.DrainResponse:
        """Drain all front ends."""
        try:
            return await self._scheduler().Drain(request, timeout=_SCHEDULER_SECONDS)
        except grpc.aio.AioRpcError as error:
            _refuse(error)

    def _scheduler(self) -> "admin_pb2_grpc.AdminServiceAsyncStub":
        channel = self._channel()
        if channel is None:
            raise Unavailable("no scheduler is in session: try again when one is")
        return admin_pb2_grpc.AdminServiceStub(channel)


def _refuse(error: grpc.aio.AioRpcError) -> NoReturn:
    raise Unavailable(f"the scheduler: {error.code().name}: {error.details()}") from None
