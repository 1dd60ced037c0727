"""Takes the announcements of workers."""

import grpc
import grpc.aio

from control_plane.edge.worker_link.registry import TooManyWorkers, WorkerRegistry
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc


class AnnounceServicer(worker_pb2_grpc.AnnounceServiceServicer):
    """Hands announcements to the registry, on whose event loop it is to be served."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry

    async def Announce(
        self,
        request: worker_pb2.AnnounceRequest,
        context: grpc.aio.ServicerContext[worker_pb2.AnnounceRequest, worker_pb2.AnnounceResponse],
    ) -> worker_pb2.AnnounceResponse:
        """Take an announcement. INVALID_ARGUMENT: not an address; RESOURCE_EXHAUSTED: too many workers."""
        try:
            self._registry.announce(request.address, request.incarnation)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"address: {error}")
        except TooManyWorkers as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return worker_pb2.AnnounceResponse(lease_ms=round(self._registry.announce_lease_seconds * 1000))
