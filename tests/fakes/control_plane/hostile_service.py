"""A scheduler whose frames are changed on their way to front ends."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from control_plane.edge.frontend_link.service import SchedulerService
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb

#: What is sent in the place of a frame: messages, and bytes that are none.
Change = Callable[[pb.ConnectResponse], Iterable[pb.ConnectResponse | bytes]]

_METHOD = pb.DESCRIPTOR.services_by_name["SchedulerService"].methods_by_name["Connect"]


class _ChangedContext:
    """A stream's context that writes other frames."""

    def __init__(self, context: Any, change: Change) -> None:
        self._context = context
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, frame: pb.ConnectResponse) -> None:
        for changed in self._change(frame):
            await self._context.write(changed)


def add_hostile_service(service: SchedulerService, server: grpc.aio.Server, change: Change) -> None:
    """Serve Connect with changed frames."""

    async def connect(frames: AsyncIterator[pb.ConnectRequest], context: Any) -> None:
        await service.Connect(frames, _ChangedContext(context, change))  # type: ignore[arg-type]

    handler = grpc.stream_stream_rpc_method_handler(
        connect,
        request_deserializer=pb.ConnectRequest.FromString,
        response_serializer=lambda frame: frame if isinstance(frame, bytes) else frame.SerializeToString(),
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_METHOD.containing_service.full_name, {"Connect": handler}),))
