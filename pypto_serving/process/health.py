"""The standard health service. That of grpc_health lets one watcher that does not read hold up every change for everybody."""

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]
_STATUSES = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
    None: health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
}

#: Its full name, for reflection.
HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # missing in the stubs
    """Lives on one event loop. A watcher that reads slowly skips states in between, and nobody waits for it."""

    def __init__(self) -> None:
        self._is_serving: dict[str, bool] = {}
        self._changed = asyncio.Event()  # replaced at every change

    def set(self, service: str, is_serving: bool) -> None:
        """Set the state of a service."""
        if self._is_serving.get(service) is not is_serving:
            self._is_serving[service] = is_serving
            self._changed.set()
            self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> health_pb2.HealthCheckResponse:
        """The state of a service now."""
        if request.service not in self._is_serving:
            known = ", ".join(map(repr, self._is_serving))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service[:256]!r} is unknown; there are {known}")
        return health_pb2.HealthCheckResponse(status=_STATUSES[self._is_serving[request.service]])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: _Context) -> None:
        """The state of a service now, and every one to come. A coroutine that writes: gRPC cancels it wherever it waits."""
        written = None
        while True:
            changed = self._changed
            status = _STATUSES[self._is_serving.get(request.service)]
            if status != written:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                written = status
            await changed.wait()
