"""A control plane that a test plays by hand, over a real connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from pypto_serving.wire.columns import pack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb
from pypto_serving.worker.v1 import worker_pb2_grpc

FINGERPRINT = "f" * 32


def hello(name: str = "cp-1", **fields: Any) -> pb.ExecuteRequest:
    """A Hello of the control plane `name`."""
    fields = {"protocol_version": 1, "control_plane_id": name, "model_fingerprint": FINGERPRINT, **fields}
    return pb.ExecuteRequest(hello=pb.Hello(**fields))


def wire_admission(lane: int, token_ids: list[int], pages: list[int], **fields: Any) -> pb.LaneAdmission:
    """A greedy sequence that may grow to 16 tokens."""
    fields = {
        "generation": 1,
        "num_prompt_tokens": len(token_ids),
        "final_length": 16,
        "sampling": pb.LaneSampling(top_p=1.0, repetition_penalty=1.0),
        "page_tables": [pb.PageTable(page_ids=pack_ids(pages))],
        **fields,
    }
    return pb.LaneAdmission(lane=lane, token_ids=pack_ids(token_ids), **fields)


class HandControlPlane:
    """One Execute call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        # grpc-stubs knows calls without a request iterator no more than it knows EOF.
        self._call: Any = worker_pb2_grpc.WorkerServiceStub(channel).Execute()  # type: ignore[call-arg]
        self.epoch = 0

    async def open(self, name: str = "cp-1", **fields: Any) -> pb.Welcome:
        """Shake hands; raises AioRpcError when refused."""
        await self.send(hello(name, **fields))
        welcome = (await self.read("welcome")).welcome
        self.epoch = welcome.epoch
        return welcome

    async def send(self, request: pb.ExecuteRequest) -> None:
        """Send any frame."""
        await self._call.write(request)

    async def step(self, step_id: int, acked_step_id: int = 0, epoch: int | None = None, **fields: Any) -> None:
        """Send a step."""
        step = pb.Step(step_id=step_id, acked_step_id=acked_step_id, **fields)
        await self.send(pb.ExecuteRequest(epoch=self.epoch if epoch is None else epoch, step=step))

    async def reset(self) -> None:
        """Send a Reset."""
        await self.send(pb.ExecuteRequest(epoch=self.epoch, reset=pb.Reset()))

    async def read(self, *kinds: str) -> pb.ExecuteResponse:
        """The next frame of one of these kinds; raises AioRpcError with the status when the stream has ended."""
        async with asyncio.timeout(30):
            while isinstance(frame := await self._call.read(), pb.ExecuteResponse):
                if frame.WhichOneof("frame") in kinds:
                    return frame
            call = self._call
            code, metadata, details = await call.code(), await call.trailing_metadata(), await call.details()
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, None)

    async def result(self) -> pb.StepResult:
        """The next result."""
        return (await self.read("result")).result

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Read to the end of the stream; returns its status and message."""
        async with asyncio.timeout(30):
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await self._call.read(), pb.ExecuteResponse):
                    pass
            return await self._call.code(), await self._call.details()

    async def half_close(self) -> None:
        """Say that no more frames will come."""
        await self._call.done_writing()

    def cut(self) -> None:
        """Break the stream."""
        self._call.cancel()


class FakeAnnounceService(worker_pb2_grpc.AnnounceServiceServicer):
    """Collects announcements."""

    def __init__(self, lease_ms: int = 50) -> None:
        self.announcements: asyncio.Queue[pb.AnnounceRequest] = asyncio.Queue()
        self._lease_ms = lease_ms

    async def Announce(self, request: pb.AnnounceRequest, context: object) -> pb.AnnounceResponse:
        """Grant a lease."""
        self.announcements.put_nowait(request)
        return pb.AnnounceResponse(lease_ms=self._lease_ms)


@asynccontextmanager
async def announce_server(service: FakeAnnounceService, port: int = 0) -> AsyncIterator[int]:
    """Serve `service` and yield the port."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    worker_pb2_grpc.add_AnnounceServiceServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)
