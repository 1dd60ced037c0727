"""The service for operators where the engine is another process: hands every call on to the scheduler."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from control_plane.edge.scheduler_link.stream import SessionLost, channel_of_session
from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument, Unavailable
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc

_SCHEDULER_SECONDS = 10.0
_PROFILE_SECONDS = 300.0

_Answer = TypeVar("_Answer")
_Context = grpc.aio.ServicerContext[Any, Any]


class AdminProxy(admin_pb2_grpc.AdminServiceServicer):
    """Lives on the clients' event loop. `channel` gives the connection to the scheduler in session."""

    def __init__(self, channel: Callable[[], grpc.aio.Channel | None]) -> None:
        self._channel = channel

    async def GetState(self, request: admin_pb2.GetStateRequest, context: _Context) -> admin_pb2.GetStateResponse:
        """The scheduler's snapshot, with what all front ends say."""
        return await self._ask(lambda scheduler: scheduler.GetState(request, timeout=_SCHEDULER_SECONDS))

    async def ResetPrefixCache(self, request: admin_pb2.ResetPrefixCacheRequest, context: _Context) -> admin_pb2.ResetPrefixCacheResponse:
        """Let the scheduler forget cached pages."""
        return await self._ask(lambda scheduler: scheduler.ResetPrefixCache(request, timeout=_SCHEDULER_SECONDS))

    async def Drain(self, request: admin_pb2.DrainRequest, context: _Context) -> admin_pb2.DrainResponse:
        """Drain all front ends."""
        return await self._ask(lambda scheduler: scheduler.Drain(request, timeout=_SCHEDULER_SECONDS))

    async def StartProfile(self, request: admin_pb2.StartProfileRequest, context: _Context) -> admin_pb2.StartProfileResponse:
        """Let every process record what it does."""
        return await self._ask(lambda scheduler: scheduler.StartProfile(request, timeout=_SCHEDULER_SECONDS))

    async def SetLogLevel(self, request: admin_pb2.SetLogLevelRequest, context: _Context) -> admin_pb2.SetLogLevelResponse:
        """Tell every process from which level on to log."""
        return await self._ask(lambda scheduler: scheduler.SetLogLevel(request, timeout=_SCHEDULER_SECONDS))

    async def StopProfile(self, request: admin_pb2.StopProfileRequest, context: _Context) -> None:  # type: ignore[override]  # it writes
        """Send what every process has recorded."""

        async def hand_on(scheduler: "admin_pb2_grpc.AdminServiceAsyncStub") -> None:
            async for part in scheduler.StopProfile(request, timeout=_PROFILE_SECONDS):
                await context.write(part)

        await self._ask(hand_on)

    async def _ask(self, call: "Callable[[admin_pb2_grpc.AdminServiceAsyncStub], Awaitable[_Answer]]") -> _Answer:
        channel = self._channel()
        if channel is None:
            raise Unavailable("no scheduler is in session: try again when one is")
        try:
            with channel_of_session():
                return await call(admin_pb2_grpc.AdminServiceStub(channel))
        except SessionLost as error:
            raise Unavailable(f"the scheduler: {error}") from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise FailedPrecondition(error.details() or "") from None
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument(error.details() or "") from None
            raise Unavailable(f"the scheduler: {error.code().name}: {error.details()}") from None
